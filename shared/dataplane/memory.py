"""The in-memory adapter of the data plane, nastier than UCX, for tests and simulation.

A `MemoryFabric` joins the planes of one event loop; tests decide through its switches, `gate`
and `release` when bytes land. The promise of `Plane.read` holds in all weathers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shared.clock import Clock, SystemClock
from shared.dataplane.observer import Cause, PlaneObserver, SilentObserver
from shared.dataplane.plane import PageMemory, PageRead, ReadGuard, ReadReport
from shared.dataplane.runs import check_targets, coalesce
from shared.dataplane.weather import Forecast, Mishap, Weather
from shared.errors import Code, StartupError, TransferError

_TRANSPORT = "memory"


@dataclass(frozen=True, slots=True)
class Landing:
    """One page about to land."""

    reader: str
    owner: str
    page: PageRead


class Flight:
    """A granted read: the pages still to land, and whether they still may."""

    def __init__(
        self,
        reader: MemoryPlane,
        owner: MemoryPlane,
        read: int,
        pages: Sequence[PageRead],
        released: asyncio.Event,
    ) -> None:
        self.reader = reader
        self.owner = owner
        self.pages = list(pages)
        """Still to land."""
        self.released = released
        self._read: int | None = read

    @property
    def fenced(self) -> bool:
        return self._read is None

    def land(self, page: PageRead) -> None:
        if not self.fenced:
            target = memoryview(self.reader.memory.run(page.target, 1)).cast("B")
            target[:] = memoryview(self.owner.memory.run(page.source, 1)).cast("B")

    def fence(self) -> None:
        """Nothing lands any more; the owner's guard learns it once, if the owner lives."""
        read, self._read = self._read, None
        if read is not None and not self.owner.dead:
            self.owner.guard.close_read(read)


class MemoryFabric:
    """All planes of a test, and the weather between them."""

    def __init__(self, seed: int = 0, weather: Weather | None = None) -> None:
        self.forecast = Forecast(weather or Weather(), seed)
        self.gate: Callable[[Landing], Awaitable[None]] | None = None
        """Awaited before each page lands, when set."""
        self._planes: dict[str, MemoryPlane] = {}
        self._stray: list[Flight] = []
        self.released = asyncio.Event()
        """Set at the next `release`, which puts a new one here."""

    def plane(
        self, name: str, clock: Clock | None = None, observer: PlaneObserver | None = None
    ) -> MemoryPlane:
        """A process's plane. The same name again: the process was restarted."""
        return MemoryPlane(self, name, clock or SystemClock(), observer or SilentObserver())

    def script(self, *mishaps: Mishap) -> None:
        """Fix what happens to the next reads, before the weather is asked."""
        self.forecast.script(mishaps)

    def release(self) -> None:
        """What is late goes on now; what was left unsettled lands now."""
        self.released.set()
        self.released = asyncio.Event()
        stray, self._stray = self._stray, []
        for flight in stray:
            for page in flight.pages:
                flight.land(page)
            flight.fence()

    def kill(self, name: str) -> None:
        """The process dies: reads of it and by it end, and it answers nobody."""
        plane = self._planes.pop(f"memory:{name}", None)
        if plane is not None:
            plane.dead = True
            plane.break_links(None)
            for other in self._planes.values():
                other.break_links(plane)

    def pause(self, name: str) -> None:
        """The process stops taking part in reads until `resume`, as under SIGSTOP."""
        self._planes[f"memory:{name}"].running.clear()

    def resume(self, name: str) -> None:
        self._planes[f"memory:{name}"].running.set()

    def join(self, plane: MemoryPlane) -> None:
        self._planes[plane.address] = plane

    def leave(self, plane: MemoryPlane) -> None:
        if self._planes.get(plane.address) is plane:
            del self._planes[plane.address]
            for other in self._planes.values():
                other.break_links(plane)

    def find(self, address: str) -> MemoryPlane:
        plane = self._planes.get(address)
        if plane is None:
            raise TransferError("nobody is there", Code.WORKER_LOST)
        return plane

    def forsake(self, flight: Flight) -> None:
        """The reader gave up and its link cannot be closed."""
        self._stray.append(flight)

    def forget(self, reader: MemoryPlane, address: str) -> None:
        """The link is really closed: strays on it never land."""
        for flight in tuple(self._stray):
            if flight.reader is reader and flight.owner.address == address:
                self._stray.remove(flight)
                flight.fence()

    async def carry(self, flight: Flight, mishap: Mishap) -> None:
        """Land the pages as the mishap has it. Raises TransferError where the link breaks."""
        waiting, flight.pages = flight.pages, []
        waiting = [waiting[index] for index in self.forecast.order(len(waiting))]
        stop = 0 if mishap is Mishap.LATE else len(waiting) // 2
        for index, page in enumerate(waiting):
            flight.pages = waiting[index:]
            await flight.owner.running.wait()
            if index == stop and mishap is Mishap.LOST:
                raise TransferError("the link broke", Code.WORKER_LOST)
            if index == stop and mishap is not Mishap.NONE:
                await flight.released.wait()
            await asyncio.sleep(0) if self.gate is None else await self.gate(
                Landing(flight.reader.name, flight.owner.name, page)
            )
            flight.land(page)
        flight.pages = []


class MemoryPlane:
    """Implements `Plane` over a fabric."""

    def __init__(
        self, fabric: MemoryFabric, name: str, clock: Clock, observer: PlaneObserver
    ) -> None:
        self.name = name
        self.dead = False
        self.running = asyncio.Event()
        self.running.set()
        self._fabric = fabric
        self._clock = clock
        self._observer = observer
        self._registered: tuple[PageMemory, ReadGuard] | None = None
        self.content = ""
        self._flights: dict[asyncio.Task[None], Flight] = {}
        self._started = False

    @property
    def address(self) -> str:
        return f"memory:{self.name}"

    @property
    def transport(self) -> str:
        return _TRANSPORT

    @property
    def memory(self) -> PageMemory:
        return self._pages()[0]

    @property
    def guard(self) -> ReadGuard:
        return self._pages()[1]

    def register(self, memory: PageMemory, guard: ReadGuard, content: str = "") -> None:
        self._registered = (memory, guard)
        self.content = content

    async def start(self) -> None:
        if self._registered is None:
            raise StartupError("the data plane was started before any memory was registered")
        self._started = True
        self._fabric.join(self)

    def warm(self, peer: str) -> None:
        """There are no links to open."""

    async def read(
        self, peer: str, ticket: str, pages: Sequence[PageRead], timeout_s: float
    ) -> ReadReport:
        if not self._started or self.dead:
            raise TransferError("the data plane is not running")
        runs = coalesce(pages)
        check_targets(self.memory, runs)
        started_s = self._clock.now()
        if pages:
            try:
                flight, mishap = self._grant(peer, ticket, pages)
                await self._finish(flight, mishap, timeout_s)
            except TransferError as error:
                self._observer.failed(Cause.REFUSED if error.code is Code.STALE else Cause.LOST)
                raise
        seconds = self._clock.now() - started_s
        size_bytes = len(pages) * self.memory.page_bytes
        self._observer.pulled(_TRANSPORT, size_bytes, seconds)
        return ReadReport(len(pages), size_bytes, seconds, _TRANSPORT, len(runs))

    async def forget(self, peer: str) -> None:
        self._fabric.forget(self, peer)
        for task, flight in tuple(self._flights.items()):
            if flight.owner.address == peer:
                self._break(task, flight)

    async def close(self) -> None:
        self._started = False
        self._fabric.leave(self)
        self.break_links(None)

    def break_links(self, owner: MemoryPlane | None) -> None:
        """End our reads of `owner`, or all of them: the link is gone."""
        for task, flight in tuple(self._flights.items()):
            if owner is None or flight.owner is owner:
                self._break(task, flight)

    def _break(self, task: asyncio.Task[None], flight: Flight) -> None:
        flight.fence()
        task.cancel()

    def _pages(self) -> tuple[PageMemory, ReadGuard]:
        if self._registered is None:
            raise StartupError("no memory is registered with the data plane")
        return self._registered

    def _grant(self, peer: str, ticket: str, pages: Sequence[PageRead]) -> tuple[Flight, Mishap]:
        """What an owner checks before anything moves."""
        owner = self._fabric.find(peer)
        if owner.content and self.content and owner.content != self.content:
            raise TransferError("the owner's pages hold something else", Code.INCOMPATIBLE_WORKERS)
        mishap = self._fabric.forecast.draw()
        known = all(0 <= page.source < owner.memory.pages for page in pages)
        if mishap is Mishap.REFUSED or not known:
            raise TransferError("the owner refused", Code.STALE)
        if owner.memory.page_bytes != self.memory.page_bytes:
            raise TransferError("the owner refused: page size", Code.STALE)
        named = [(page.source, page.generation) for page in pages]
        read = owner.guard.open_read(ticket, named)
        if read is None:
            raise TransferError("the owner refused", Code.STALE)
        return Flight(self, owner, read, pages, self._fabric.released), mishap

    async def _finish(self, flight: Flight, mishap: Mishap, timeout_s: float) -> None:
        task = asyncio.get_running_loop().create_task(
            self._fabric.carry(flight, mishap), name="memory-read"
        )
        self._flights[task] = flight
        settled = True
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        finally:
            del self._flights[task]
            broken = flight.fenced
            if not task.done():
                task.cancel()
                settled = self._give_up(flight, mishap)
            if settled:
                flight.fence()
        if broken:
            raise TransferError("the peer is gone", Code.WORKER_LOST)
        if not task.done() or task.cancelled():
            raise TransferError("the read took too long", settled=settled)
        failure = task.exception()
        if failure is not None:
            raise failure

    def _give_up(self, flight: Flight, mishap: Mishap) -> bool:
        """The deadline came or the caller went. False: the rest can still land."""
        match mishap:
            case Mishap.STRAGGLING:
                for page in flight.pages:
                    flight.land(page)
            case Mishap.UNSETTLED:
                self._fabric.forsake(flight)
                return False
            case _:
                pass
        return True
