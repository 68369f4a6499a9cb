"""One engine in a process of its own: a line of JSON asks for work, a line of JSON has the time.

Only one works at a time; the others are stopped (SIGSTOP), so that no spinning thread disturbs.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from loadgen.engine.work import Work

_LAST_LINES: Final = 2_000


class ContenderError(Exception):
    """The process ended or said something else than an answer."""


class Contender:
    """Started at once, ready after `start`; use as a context manager."""

    def __init__(self, name: str, command: Sequence[str], environ: dict[str, str], log: Path):
        self.name = name
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                ["env", *(f"{key}={value}" for key, value in environ.items()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def start(self) -> dict[str, object]:
        """Wait until it has loaded; what it says of itself. Raises ContenderError."""
        facts = self._answer()
        self._signal(signal.SIGSTOP)
        return facts

    def measure(self, work: Work, round_number: int) -> float:
        """Seconds that the counted tokens took. Raises ContenderError."""
        self._signal(signal.SIGCONT)
        self._write(json.dumps(work.fields(round_number)))
        seconds = self._answer()["seconds"]
        self._signal(signal.SIGSTOP)
        if not isinstance(seconds, float) or seconds <= 0:
            raise ContenderError(f"{self.name} measured {seconds!r} seconds")
        return seconds

    def peak_bytes(self) -> int:
        """The most memory that the process ever held; it ends with this."""
        self._signal(signal.SIGCONT)
        self._write("{}")
        found = self._answer()["peak_bytes"]
        return found if isinstance(found, int) else 0

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # Nobody reads any more.
                self._pipe(pipe).close()

    def _write(self, line: str) -> None:
        pipe = self._pipe(self._process.stdin)
        try:
            pipe.write(line + "\n")
            pipe.flush()
        except OSError as error:
            raise ContenderError(f"{self.name} ended: {self._why()}") from error

    def _answer(self) -> dict[str, object]:
        """The next line that is one of ours; libraries may print, too."""
        pipe = self._pipe(self._process.stdout)
        for _ in range(_LAST_LINES):
            line = pipe.readline()
            if not line:
                break
            if line.startswith('{"baton":'):
                found = json.loads(line)["baton"]
                if isinstance(found, dict):
                    return found
        raise ContenderError(f"{self.name} ended: {self._why()}")

    def _why(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no reason given"

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        if pipe is None:
            raise ContenderError(f"{self.name} was started without pipes")
        return pipe
