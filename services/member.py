"""One service process of the local cluster: how it is started, and how to ask it things.

Knows the flags that every service has; the topology brings the rest.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from services.child import Child
from services.run_folder import RunFolder
from services.topology import ENGINES, Group
from shared.errors import StartupError

ROOT: Final = Path(__file__).resolve().parents[1]
_POLL_S: Final = 0.1
_ASK_S: Final = 5.0
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all processes of one cluster share."""

    folder: RunFolder
    model_path: str
    nats_url: str
    credentials: Mapping[str, Path]
    traces_port: int
    settings: tuple[str, ...] = ()
    """Flags for every service."""
    environment: Mapping[str, str]


class Member:
    """A service process under its worker id, which it keeps when it changes its role."""

    def __init__(
        self, group: Group, index: int, around: Surroundings, other: Group | None = None
    ) -> None:
        """`other`: settings of the role that it may be ordered to serve instead."""
        self.role = group.role
        self.name = f"{group.role}-{index}"
        self._commands = {group.role: _command(group, index, self.name, around)}
        if other is not None:
            placed = other.on(group.device(index))
            self._commands[other.role] = _command(placed, index, self.name, around)
            for command in self._commands.values():
                command.append("--switchable=true")
        self.child = Child(
            self.name,
            self._commands[self.role],
            _environment(group.role, around),
            around.folder.log(self.name),
            ROOT,
        )
        self._folder = around.folder

    def turn(self) -> bool:
        """The next start serves the other role. False: there is none."""
        others = [role for role in self._commands if role != self.role]
        if others:
            self.role = others[0]
            self.child.becomes(self._commands[self.role])
        return bool(others)

    @property
    def probe_url(self) -> str:
        """'' until this very process has said where it listens (not the one before it)."""
        found = self._folder.listening(self.name)
        return found.probe_url if found is not None and found.pid == self.child.pid else ""

    async def until_ready(self, http: aiohttp.ClientSession, timeout_s: float) -> None:
        """Raises StartupError: it ended (with its own words), or is not ready in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._is_ready(http):
                    if not self.child.running:
                        raise StartupError(self._why_ended())
                    # Another process has no future to await: ask again in a moment.
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise StartupError(
                f"{self.name} was not ready in {timeout_s:.0f} s: see {self.child.log}"
            ) from None

    async def accounting(self, http: aiohttp.ClientSession) -> dict[str, object]:
        """What it holds right now. Raises aiohttp.ClientError when it does not answer."""
        async with http.get(f"{self.probe_url}/accounting", timeout=_limit()) as answer:
            return dict(json.loads(await answer.read()))

    async def metrics(self, http: aiohttp.ClientSession) -> str:
        """Its Prometheus text."""
        async with http.get(f"{self.probe_url}/metrics", timeout=_limit()) as answer:
            return await answer.text()

    async def _is_ready(self, http: aiohttp.ClientSession) -> bool:
        url = self.probe_url
        if not url:
            return False
        try:
            async with http.get(f"{url}/readyz", timeout=_limit()) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _why_ended(self) -> str:
        words = self.child.last_words()
        return words or f"{self.name} ended with {self.child.exit_code}: see {self.child.log}"


def _limit() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=_ASK_S)


def _command(group: Group, index: int, name: str, around: Surroundings) -> list[str]:
    """Settings of the topology come last, so that they win."""
    flags = [
        f"--worker-id={name}",
        f"--run-dir={around.folder.path}",
        f"--nats-url={around.nats_url}",
        f"--nats-credentials-file={around.credentials[group.role]}",
        f"--model-path={around.model_path}",
    ]
    module = ["-m", f"services.{group.role}"]
    return [sys.executable, *module, *flags, *around.settings, *group.flags(index)]


def _environment(role: str, around: Surroundings) -> dict[str, str]:
    """Half the cores for each engine; variables that the caller has set win. The OTLP endpoint
    goes by variable, so that the standard OTEL_EXPORTER_OTLP_* variables still overrule it."""
    threads = max(1, (os.cpu_count() or 2) // 2) if role in ENGINES else 1
    found = dict.fromkeys(_THREADS, str(threads))
    found["TOKENIZERS_PARALLELISM"] = "false"
    found["BATON_OTLP_ENDPOINT"] = f"http://127.0.0.1:{around.traces_port}/v1/traces"
    found |= around.environment
    return found
