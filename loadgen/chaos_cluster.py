"""The processes of a running local cluster, found in its run folder: who they are, what they hold,
and signals to them. Touches nothing that the folder does not name, and only on this host.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from shared.errors import StartupError

NATS: Final = "nats"
HELD: Final = (
    "held_pages",
    "leases",
    "requests",
    "sessions",
    "waiting_tokens",
    "open_cancels",
    "open_reads",
    "offers",
    "quarantined",
    "charges",
)
"""Entries of `/accounting` that are zero when nothing runs."""
_ASK: Final = aiohttp.ClientTimeout(total=2.0)
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One service process as it described itself."""

    role: str
    worker: str
    pid: int
    probe_url: str


def read_folder(run_dir: Path) -> dict[str, Process]:
    """Every process that listens, by worker id. Raises StartupError: no cluster runs there, or a
    file names what is not a service of this host."""
    found = {}
    for path in sorted(run_dir.glob("*.json")):
        try:
            entry = json.loads(path.read_bytes())
            url = str(entry["probe_url"])
            process = Process(str(entry["role"]), str(entry["worker"]), int(entry["pid"]), url)
        except FileNotFoundError:
            continue  # it has just ended
        except (ValueError, KeyError, TypeError):
            raise StartupError(f"{path} does not describe a service") from None
        if not _on_loopback(process.probe_url):
            raise StartupError(f"{path}: {process.probe_url} is not on this host")
        if is_service(process):
            found[process.worker] = process
    if not found:
        raise StartupError(f"no cluster runs in {run_dir}: start one with `make serve`")
    return found


def is_service(process: Process) -> bool:
    """Whether the pid still belongs to that service: numbers are used again."""
    words = _command(process.pid)
    return f"services.{process.role}" in words and f"--worker-id={process.worker}" in words


def nats_pid(run_dir: Path) -> int:
    """The nats-server that runs with this folder's configuration. Raises StartupError."""
    config = str(run_dir.resolve() / NATS / "nats.conf")
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and config in _command(int(entry.name)):
            return int(entry.name)
    raise StartupError(f"no nats-server runs with {config}")


def strike(run_dir: Path, name: str, number: signal.Signals) -> int:
    """Send the signal to a worker of the folder, or to its NATS; the pid. Raises StartupError when
    there is no such process (any more)."""
    if name == NATS:
        pid = nats_pid(run_dir)
    else:
        process = read_folder(run_dir).get(name)
        if process is None:
            raise StartupError(f"{name} does not run in {run_dir}")
        pid = process.pid
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise StartupError(f"{name} has just ended by itself") from None
    return pid


class Cluster:
    """Questions to all processes of one run folder."""

    def __init__(self, run_dir: Path, http: aiohttp.ClientSession) -> None:
        self.run_dir = run_dir
        self._http = http

    def names(self, role: str) -> list[str]:
        processes = read_folder(self.run_dir).values()
        return [process.worker for process in processes if process.role == role]

    async def accounting(self) -> dict[str, dict[str, Any]]:
        """What each process holds; {} for one that does not answer."""
        processes = read_folder(self.run_dir)
        return {name: await self._accounting(process) for name, process in processes.items()}

    async def leaks(self) -> dict[str, dict[str, Any]]:
        """Processes that hold something, or do not say so."""
        found: dict[str, dict[str, Any]] = {}
        for name, entries in (await self.accounting()).items():
            rest = {key: entries[key] for key in HELD if entries.get(key)}
            if rest or not entries:
                found[name] = rest or {"accounting": "no answer"}
        return found

    async def all_ready(self, names: frozenset[str]) -> bool:
        """Whether all of these run and say that they are ready."""
        processes = read_folder(self.run_dir)
        if not names <= processes.keys():
            return False
        for name in names:
            try:
                async with self._http.get(
                    f"{processes[name].probe_url}/readyz", timeout=_ASK
                ) as answer:
                    if answer.status != 200:
                        return False
            except (aiohttp.ClientError, TimeoutError):
                return False
        return True

    async def _accounting(self, process: Process) -> dict[str, Any]:
        try:
            async with self._http.get(f"{process.probe_url}/accounting", timeout=_ASK) as answer:
                return dict(json.loads(await answer.read()))
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return {}


def _on_loopback(url: str) -> bool:
    try:
        return ipaddress.ip_address(urlsplit(url).hostname or "").is_loopback
    except ValueError:
        return False


def _command(pid: int) -> list[str]:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode("utf-8", "replace").split("\0")
