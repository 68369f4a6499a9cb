"""One way to drive both adapters: planes in this process, and an owner that can be stalled,
resumed and killed (a real child process for UCX)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from shared.dataplane.memory import MemoryFabric
from shared.dataplane.nixl import NixlPlane
from shared.dataplane.plane import Plane
from shared.dataplane.ucx import UcxPlane, UcxSettings
from tests.shared.dataplane.pages import PAGES, ArrayPages, CountingObserver, TicketGuard

_ROOT = Path(__file__).resolve().parents[3]


class End:
    """A started plane of this process with everything a test looks at."""

    def __init__(self, plane: Plane, pages: ArrayPages, observer: CountingObserver) -> None:
        self.plane = plane
        self.pages = pages
        self.guard = TicketGuard()
        self.observer = observer


class FarOwner(Protocol):
    """An owner elsewhere, with stamped pages and TicketGuard."""

    address: str

    async def stall(self) -> None: ...

    async def resume(self) -> None: ...

    async def kill(self) -> None: ...

    async def restart(self) -> None: ...


class World(Protocol):
    async def end(self, page_bytes: int = 4096, pages: int = PAGES, content: str = "") -> End: ...

    async def far_owner(self, page_bytes: int = 4096, pages: int = PAGES) -> FarOwner: ...

    async def close(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.fabric = MemoryFabric(seed=1)
        self.ends: list[End] = []

    async def end(self, page_bytes: int = 4096, pages: int = PAGES, content: str = "") -> End:
        return await self.start(f"end-{len(self.ends)}", page_bytes, pages, content)

    async def start(self, name: str, page_bytes: int, pages: int, content: str = "") -> End:
        observer = CountingObserver()
        plane = self.fabric.plane(name, observer=observer)
        end = End(plane, ArrayPages(pages, page_bytes), observer)
        plane.register(end.pages, end.guard, content)
        await plane.start()
        self.ends.append(end)
        return end

    async def far_owner(self, page_bytes: int = 4096, pages: int = PAGES) -> FarOwner:
        owner = MemoryOwner(self, f"far-{len(self.ends)}", page_bytes, pages)
        await owner.restart()
        return owner

    async def close(self) -> None:
        for end in self.ends:
            await end.plane.close()


class MemoryOwner:
    def __init__(self, world: MemoryWorld, name: str, page_bytes: int, pages: int) -> None:
        self.address = f"memory:{name}"
        self._world = world
        self._name = name
        self._shape = (page_bytes, pages)

    async def stall(self) -> None:
        self._world.fabric.pause(self._name)

    async def resume(self) -> None:
        self._world.fabric.resume(self._name)

    async def kill(self) -> None:
        self._world.fabric.kill(self._name)
        self._world.ends = [end for end in self._world.ends if end.plane.address != self.address]

    async def restart(self) -> None:
        end = await self._world.start(self._name, *self._shape)
        end.pages.stamp()


class UcxWorld:
    """Also NIXL's, which differs in the plane alone."""

    def __init__(self, transport: str, settle_s: float = 0.3, compiled: bool = True) -> None:
        self.transport = transport
        self.settings = (
            UcxSettings(settle_s=settle_s)
            if transport == "nixl"
            else UcxSettings(transport=transport, settle_s=settle_s, compiled=compiled)
        )
        self.ends: list[End] = []
        self.owners: list[ChildOwner] = []

    async def end(self, page_bytes: int = 4096, pages: int = PAGES, content: str = "") -> End:
        observer = CountingObserver()
        plane = self._plane(observer)
        end = End(plane, ArrayPages(pages, page_bytes), observer)
        plane.register(end.pages, end.guard, content)
        await plane.start()
        self.ends.append(end)
        return end

    async def far_owner(self, page_bytes: int = 4096, pages: int = PAGES) -> FarOwner:
        owner = ChildOwner(self.transport, page_bytes, pages)
        await owner.restart()
        self.owners.append(owner)
        return owner

    async def close(self) -> None:
        for end in self.ends:
            await end.plane.close()
        for owner in self.owners:
            await owner.kill()

    def _plane(self, observer: CountingObserver) -> Plane:
        if self.transport == "nixl":
            return NixlPlane(self.settings, observer)
        return UcxPlane(self.settings, observer)


class ChildOwner:
    """A real process; a restart takes the same port, as a supervisor would."""

    def __init__(self, transport: str, page_bytes: int, pages: int) -> None:
        self.address = ""
        self._arguments = (transport, str(pages), str(page_bytes))
        self._process: asyncio.subprocess.Process | None = None

    async def restart(self) -> None:
        port = urlsplit(self.address).port or 0
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.shared.dataplane.owner_process",
            *self._arguments,
            str(port),
            cwd=_ROOT,
            env={"PATH": os.environ.get("PATH", "")},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(20):
            self.address = (await self._process.stdout.readline()).decode().strip()
        assert "://127.0.0.1:" in self.address, self.address

    async def stall(self) -> None:
        self._signal(signal.SIGSTOP)

    async def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def kill(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.returncode is None:
            process.kill()
        async with asyncio.timeout(10):
            await process.communicate()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


async def owner_and_reader(world: World, page_bytes: int = 4096) -> tuple[End, End]:
    """Two planes of this process; the owner's pages all differ."""
    owner, reader = await world.end(page_bytes), await world.end(page_bytes)
    owner.pages.stamp()
    return owner, reader
