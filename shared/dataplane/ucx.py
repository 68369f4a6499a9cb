"""The UCX adapter of the data plane: one process's listener, and one link per peer it reads.

Requests and tickets travel on a socket of ours, which binds where it is told and notices a dead
peer at once; pages travel on UCX, straight from the owner's memory into ours. Knows no requests,
no leases and no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

from shared.clock import Clock
from shared.dataplane.observer import Cause, PlaneObserver, SilentObserver
from shared.dataplane.plane import PageMemory, PageRead, ReadGuard, ReadReport
from shared.dataplane.runs import Run, check_targets, coalesce
from shared.dataplane.ucx_address import NO_DOMAIN, PlaneAddress, memory_domain, parse_address
from shared.dataplane.ucx_library import UcxLibrary
from shared.dataplane.ucx_owner import OwnerLink
from shared.dataplane.ucx_reader import LinkLost, ReaderLink
from shared.dataplane.ucx_stream import FrameStream
from shared.dataplane.ucx_wire import MAX_PAGES, MAX_TICKET_BYTES, Lane
from shared.errors import Code, StartupError, TransferError
from shared.ids import PageId

_CLOSE_S: Final = 5.0
_FIRST_PAGE: Final = PageId(0)
_LANES: Final = {
    "auto": frozenset((Lane.SHM, Lane.TCP)),
    "tcp": frozenset((Lane.TCP,)),
    "shm": frozenset((Lane.SHM,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxSettings:
    """Where to listen, and how pages may travel."""

    host: str = "127.0.0.1"
    """Literal address to bind; peers reach us there."""
    port: int = 0
    transport: str = "auto"
    """'auto': shared memory within one host, TCP across; 'tcp' or 'shm': that only."""
    connect_timeout_s: float = 5.0
    settle_s: float = 0.5
    """How long a read that was given up may still end by itself before its link is closed."""
    max_links: int = 256
    """Connections from readers at one time."""


class _Pull:
    """A read under way: the link that must be fenced to stop it, and how it ended."""

    def __init__(self) -> None:
        self.link: ReaderLink | None = None
        self.failure: TransferError | None = TransferError("the read broke off")
        """Until success is certain."""


class UcxPlane:
    """Implements `Plane`. Lives on one event loop."""

    def __init__(
        self, settings: UcxSettings, clock: Clock, observer: PlaneObserver | None = None
    ) -> None:
        if settings.transport not in _LANES:
            raise StartupError("transport must be 'auto', 'tcp' or 'shm'")
        self._settings = settings
        self._clock = clock
        self._observer: PlaneObserver = observer or SilentObserver()
        self._memory: PageMemory | None = None
        self._guard: ReadGuard | None = None
        self._library: UcxLibrary | None = None
        self._server: asyncio.Server | None = None
        self._domain = NO_DOMAIN
        self._address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: dict[str, ReaderLink] = {}
        self._served = 0
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    @property
    def transport(self) -> str:
        """The transports our open links really use; before the first read, the setting."""
        used = sorted({link.transport for link in self._links.values() if link.transport})
        return "ucx:" + ("+".join(used) if used else self._settings.transport)

    def register(self, memory: PageMemory, guard: ReadGuard) -> None:
        self._memory = memory
        self._guard = guard

    async def start(self) -> None:
        """Load UCX and listen. Raises StartupError."""
        if self._memory is None or self._guard is None:
            raise StartupError("the data plane was started before any memory was registered")
        if self._settings.transport != "tcp":
            self._domain = memory_domain()
        try:
            self._library = UcxLibrary(
                self._settings.host,
                cuda=hasattr(self._memory.run(_FIRST_PAGE, 1), "__cuda_array_interface__"),
                shared_only=self._settings.transport == "shm",
            )
            self._server = await asyncio.start_server(
                self._accept, self._settings.host, self._settings.port
            )
        except (OSError, ValueError) as error:
            where = f"{self._settings.host}:{self._settings.port}"
            raise StartupError(f"the data plane cannot listen on {where}: {error}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        self._address = str(PlaneAddress(host, port, self._domain))

    async def read(
        self, peer: str, ticket: str, pages: Sequence[PageRead], timeout_s: float
    ) -> ReadReport:
        """See `Plane.read`. May return up to `settle_s` after the deadline."""
        memory = self._memory
        if self._closed or memory is None or self._library is None:
            raise TransferError("the data plane is not running")
        check_targets(memory, pages)
        if len(pages) > MAX_PAGES or len(ticket.encode()) > MAX_TICKET_BYTES:
            raise TransferError("the read is too large", Code.INVALID_PARAMETER)
        runs = coalesce(pages)
        started_s = self._clock.now()
        pull = _Pull()
        if runs:
            await self._finish(pull, self._pull(pull, peer, ticket, runs, timeout_s), timeout_s)
        seconds = self._clock.now() - started_s
        size_bytes = len(pages) * memory.page_bytes
        transport = pull.link.transport if pull.link is not None else ""
        if runs:
            self._observer.pulled(transport, size_bytes, seconds)
        return ReadReport(len(pages), size_bytes, seconds, f"ucx:{transport}", len(runs))

    async def forget(self, peer: str) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            link.fence()

    async def close(self) -> None:
        """Stop serving, end every read, close every link. Idempotent."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.fence()
        self._links.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        self._library = None

    # -- reading -------------------------------------------------------------------------

    async def _finish(
        self, pull: _Pull, work: Coroutine[object, object, None], timeout_s: float
    ) -> None:
        """Await the read; on timeout or cancellation let it drain, then fence its link."""
        task = self._spawn(work, "plane-pull")
        try:
            await asyncio.wait({task}, timeout=timeout_s)
            in_time = task.done()
            if not in_time:
                await asyncio.wait({task}, timeout=self._settings.settle_s)
        except asyncio.CancelledError:
            self._observer.failed(Cause.CANCELLED)
            try:
                await asyncio.wait({task}, timeout=self._settings.settle_s)
            finally:
                self._abandon(task, pull)
            raise
        settled = self._abandon(task, pull)
        if not in_time:
            self._observer.failed(Cause.TIMEOUT if settled else Cause.UNSETTLED)
            raise TransferError("the read took too long", settled=settled)
        if pull.failure is not None:
            self._observer.failed(_cause(pull.failure))
            raise pull.failure

    def _abandon(self, task: asyncio.Task[None], pull: _Pull) -> bool:
        """Make sure that nothing lands any more. No await: no cancellation can come between."""
        if task.done():
            return True
        task.cancel()
        return pull.link is None or pull.link.fence()

    async def _pull(
        self, pull: _Pull, peer: str, ticket: str, runs: Sequence[Run], timeout_s: float
    ) -> None:
        """The read itself. Once more on a fresh link when a kept one turned out to be dead."""
        try:
            try:
                pull.link = self._link(peer)
                await pull.link.pull(ticket, runs, timeout_s)
            except LinkLost:
                pull.link = self._link(peer)
                await pull.link.pull(ticket, runs, timeout_s)
            pull.failure = None
        except TransferError as error:
            pull.failure = error

    def _link(self, peer: str) -> ReaderLink:
        """The kept link to this peer, or a new one that starts to connect."""
        link = self._links.get(peer)
        if link is not None and not link.closed:
            return link
        if self._closed or self._library is None or self._memory is None:
            raise TransferError("the data plane is not running")
        address = parse_address(peer)
        link = ReaderLink(
            (address.host, address.port),
            self._lane(address),
            self._library,
            self._memory,
            self._observer,
        )
        self._links[peer] = link
        self._spawn(self._keep(peer, link), "plane-link")
        return link

    async def _keep(self, peer: str, link: ReaderLink) -> None:
        try:
            await link.run(self._settings.connect_timeout_s)
        finally:
            if self._links.get(peer) is link:
                del self._links[peer]

    def _lane(self, address: PlaneAddress) -> Lane:
        if self._domain != NO_DOMAIN and address.domain == self._domain:
            return Lane.SHM
        if self._settings.transport == "shm":
            raise TransferError("the peer shares no memory with us", Code.INCOMPATIBLE_WORKERS)
        return Lane.TCP

    # -- serving -------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = FrameStream(reader, writer)
        if self._closed or self._served >= self._settings.max_links:
            self._observer.turned_away(Cause.TOO_MANY)
            stream.abort()
            return
        self._served += 1
        self._spawn(self._serve(stream), "plane-serve")

    async def _serve(self, stream: FrameStream) -> None:
        try:
            if self._library is None or self._memory is None or self._guard is None:
                return
            link = OwnerLink(stream, self._library, self._memory, self._guard, self._observer)
            await link.run(_LANES[self._settings.transport])
        finally:
            self._served -= 1
            stream.abort()

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """A supervised task that `close` ends and awaits."""
        task = asyncio.get_running_loop().create_task(self._supervise(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervise(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 - one broken link must not take the process down
            self._observer.failed(Cause.INTERNAL)


def _cause(failure: TransferError) -> Cause:
    if not failure.settled:
        return Cause.UNSETTLED
    match failure.code:
        case Code.STALE:
            return Cause.REFUSED
        case Code.INCOMPATIBLE_WORKERS:
            return Cause.UNREACHABLE
        case _:
            return Cause.UNREACHABLE if isinstance(failure, LinkLost) else Cause.LOST
