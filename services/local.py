"""The local cluster: NATS and one process per service, from one topology, started and drained.

Owns the processes and the order of their endings. Decides nothing about requests.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from services.member import Member, Surroundings
from services.run_folder import RunFolder
from services.topology import ROLES, Topology
from shared.bus.server import NatsServer
from shared.errors import StartupError
from shared.ports import free_port, is_free
from shared.runtime.turning import EXIT_TURNED, OTHER_ROLE

DRAIN_ORDER: Final = (("gateway",), ("prefill", "decode"), ("kvpool",), ("scheduler",))
"""Whoever takes work ends first; the bus, after all of them."""
_FIRST_BACKOFF_S: Final = 0.5
_LAST_BACKOFF_S: Final = 10.0
_STEADY_S: Final = 60.0
_HURRIED_S: Final = 5.0
_LAST_PORT: Final = 65_535

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """One local cluster. Port 0: any free one."""

    topology: Topology
    model_path: str
    run_dir: Path
    restart: bool = True
    start_timeout_s: float = 180.0
    drain_s: float = 60.0
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the gateway listens."""

    public: int
    admin: int
    traces: int


class LocalCluster:
    """`start`, then `supervise` until a stop event (or none of that, in a test), then `drain`."""

    def __init__(self, settings: LocalSettings, say: Say) -> None:
        self.settings = settings
        self.folder = RunFolder(settings.run_dir)
        self.nats = NatsServer(self.folder.nats)
        self.members: dict[str, Member] = {}
        self.ports = Ports(0, 0, 0)
        self._say = say
        self._http: aiohttp.ClientSession | None = None
        self._stopping = asyncio.Event()
        self._hurried = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports.public}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.admin}"

    @property
    def http(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise StartupError("the cluster was not started")
        return self._http

    def of(self, role: str) -> list[Member]:
        return [member for member in self.members.values() if member.role == role]

    async def start(self) -> None:
        """Everything ready, or StartupError (the words of the process that failed) and nothing
        left running."""
        self.folder.open()
        try:
            self.ports = _take_ports(self.settings.topology)
            self._http = aiohttp.ClientSession()
            begun_s = time.monotonic()
            await asyncio.to_thread(self.nats.start)
            self._tell("nats", begun_s)
            self.members = {member.name: member for member in self._new_members()}
            for member in self.members.values():
                await member.child.start()
            await self._until_all_ready(begun_s)
        except BaseException:
            await self.kill()
            raise

    async def supervise(self, stop: asyncio.Event) -> None:
        """Start again what dies, until `stop` is set."""
        async with asyncio.TaskGroup() as tasks:
            for member in self.members.values():
                tasks.create_task(self._keep(member), name=f"keep-{member.name}")
            tasks.create_task(self._keep_nats(), name="keep-nats")
            await stop.wait()
            await self.drain()

    async def drain(self) -> None:
        """End every process in order: work that runs may finish. Safe to repeat."""
        self._stopping.set()
        for roles in DRAIN_ORDER:
            async with asyncio.TaskGroup() as tasks:
                for member in (member for role in roles for member in self.of(role)):
                    tasks.create_task(self._stop(member), name=f"stop-{member.name}")
        await self._close()

    def hurry(self) -> None:
        """A second Ctrl-C: every process is told again, and waited for briefly."""
        self._hurried = True
        for member in self.members.values():
            member.child.terminate()

    async def kill(self) -> None:
        """End everything at once."""
        self._stopping.set()
        for member in self.members.values():
            await member.child.kill()
        await self._close()

    async def restart(self, name: str) -> None:
        """Start a process that has ended, and wait until it is ready. Raises StartupError."""
        member = self.members[name]
        await member.child.start()
        if self._stopping.is_set():
            await member.child.kill()
        await member.until_ready(self.http, self.settings.start_timeout_s)

    async def accounting(self) -> dict[str, dict[str, object]]:
        """What each running process holds."""
        running = [member for member in self.members.values() if member.child.running]
        return {member.name: await member.accounting(self.http) for member in running}

    # -- inside ------------------------------------------------------------------------------

    def _new_members(self) -> Iterator[Member]:
        topology = self.settings.topology
        around = Surroundings(
            folder=self.folder,
            model_path=self.settings.model_path,
            nats_url=self.nats.url,
            credentials={role: self.nats.credentials(role) for role in ROLES},
            traces_port=self.ports.traces,
            settings=topology.shared_flags(),
            environment=self.settings.environment,
        )
        gateway = topology.group("gateway").changed(
            port=self.ports.public, admin_port=self.ports.admin, traces_port=self.ports.traces
        )
        for group in topology.changed(gateway).groups:
            turns = self.settings.restart and group.role in OTHER_ROLE
            other = topology.group(OTHER_ROLE[group.role]) if turns else None
            yield from (Member(group, index, around, other) for index in range(group.count))

    async def _until_all_ready(self, begun_s: float) -> None:
        """The first failure cancels the other waits and is the one that is told."""

        async def one(member: Member) -> None:
            await member.until_ready(self.http, self.settings.start_timeout_s)
            self._tell(member.name, begun_s)

        try:
            async with asyncio.TaskGroup() as tasks:
                for member in self.members.values():
                    tasks.create_task(one(member), name=f"ready-{member.name}")
        except ExceptionGroup as group:
            failures = group.subgroup(StartupError)
            if failures is None:
                raise
            # Not from `except*`: some releases of 3.11 put what it raises into a group again.
            raise StartupError(str(failures.exceptions[0])) from None

    async def _keep(self, member: Member) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            begun_s = time.monotonic()
            code = await member.child.wait()
            if self._stopping.is_set():
                return
            if code == EXIT_TURNED and await self._turned(member):
                continue
            again = f"starting it again in {backoff_s:g} s" if self.settings.restart else ""
            self._say(f"{member.name} ended with {code}; {again or 'not started again'}")
            if not self.settings.restart or await self._stopped_within(backoff_s):
                return
            steady = time.monotonic() - begun_s > _STEADY_S
            backoff_s = _FIRST_BACKOFF_S if steady else min(2 * backoff_s, _LAST_BACKOFF_S)
            try:
                begun_s = time.monotonic()
                await self.restart(member.name)
                self._tell(member.name, begun_s)
            except StartupError as error:
                self._say(error.message)

    async def _turned(self, member: Member) -> bool:
        """Start it in its other role, at once: it drained for that. False when it does not come
        up there: it is in its old role again, and has ended."""
        if not member.turn():
            return False
        self._say(f"{member.name} serves {member.role} from now on")
        begun_s = time.monotonic()
        try:
            await self.restart(member.name)
        except StartupError as error:
            self._say(error.message)
            if member.child.running:
                return True
            member.turn()
            return False
        self._tell(member.name, begun_s)
        return True

    async def _keep_nats(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while (process := self.nats.process) is not None:
            code = await asyncio.to_thread(process.wait)
            if self._stopping.is_set() or not self.settings.restart:
                return
            self._say(f"nats ended with {code}; starting it again in {backoff_s:g} s")
            if await self._stopped_within(backoff_s):
                return
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)
            with suppress(StartupError):
                await asyncio.to_thread(self.nats.start)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _stop(self, member: Member) -> None:
        if not member.child.running:
            return
        limit_s = _HURRIED_S if self._hurried else self.settings.drain_s + _HURRIED_S
        gently = await member.child.stop(limit_s)
        self._say(f"{member.name:<14} {'stopped' if gently else 'did not stop in time: killed'}")

    async def _close(self) -> None:
        await asyncio.to_thread(self.nats.stop)
        if self._http is not None:
            await self._http.close()
        self.folder.close()

    def _tell(self, name: str, begun_s: float) -> None:
        self._say(f"{name:<14} ready   {time.monotonic() - begun_s:5.1f} s")


def _take_ports(topology: Topology) -> Ports:
    """The gateway's ports, each free; a new one for each 0. Raises StartupError naming the flag."""
    gateway, taken = topology.group("gateway"), []
    for name, default in (("port", 8000), ("admin_port", 8001), ("traces_port", 4318)):
        wanted, flag = int(gateway.get(name, default)), name.replace("_", "-")
        if not 0 <= wanted <= _LAST_PORT:
            raise StartupError(f"--{flag} must be 0..{_LAST_PORT}, not {wanted}")
        port = wanted or free_port()
        if not is_free(port):
            raise StartupError(
                f"port {port} is taken: stop what listens there, or choose another --{flag}"
            )
        taken.append(port)
    return Ports(*taken)
