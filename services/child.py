"""One child process of the local cluster: started, watched, ended, and its last words.

Knows nothing of services. Its output goes to a file; a child dies with its supervisor.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from shared.orphans import end_with_parent

_TAIL_BYTES: Final = 16_384
_LOG_LIMIT_BYTES: Final = 64 * 1024 * 1024
_KILL_S: Final = 10.0


class Child:
    """A process by name. `start` may be called again after it has ended."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        folder: Path,
    ) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._folder = folder
        self._environment = dict(environment)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Of the running or last process; 0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """None while running; negative: the signal that ended it."""
        return self._process.returncode if self._process else None

    def becomes(self, argv: Sequence[str]) -> None:
        """What the next start runs."""
        self._argv = list(argv)

    async def start(self) -> None:
        """In a session of its own, so that Ctrl-C in a terminal reaches the supervisor alone."""
        if self.log.is_file() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
            self.log.replace(self.log.with_suffix(".old"))
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                env=self._environment,
                cwd=self._folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def signal(self, number: signal.Signals) -> None:
        """No effect when it has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def terminate(self) -> None:
        """Ask it to drain (asked twice, to end fast)."""
        self.signal(signal.SIGTERM)

    async def wait(self) -> int:
        """Until it has ended; the exit code."""
        return 0 if self._process is None else await self._process.wait()

    async def stop(self, timeout_s: float) -> bool:
        """SIGTERM, then SIGKILL after `timeout_s`. Whether it ended by itself."""
        self.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait()
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def kill(self) -> None:
        """SIGKILL; returns when it has ended."""
        self.signal(signal.SIGKILL)
        async with asyncio.timeout(_KILL_S):
            await self.wait()

    def last_words(self) -> str:
        """The last line that is not a JSON log line: what a service says when it cannot start."""
        if not self.log.is_file():
            return ""
        with self.log.open("rb") as source:
            source.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = source.read().decode("utf-8", "replace").splitlines()
        plain = [line.strip() for line in lines if line.strip() and not line.startswith("{")]
        return plain[-1] if plain else ""
