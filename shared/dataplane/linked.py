"""A plane made of links: listens, keeps one link per peer it reads, and ends every read cleanly.

What moves bytes is an adapter's `Wiring`. Knows no transport library, no requests and no leases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final

from shared.clock import Clock
from shared.dataplane.flow import Budget, portions
from shared.dataplane.link_address import PlaneAddress, new_key, parse_address
from shared.dataplane.link_parts import Link, LinkSettings, PlaneParts, Wiring
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.link_wire import MAX_PAGES, MAX_TICKET_BYTES, UNTOLD, content_digest
from shared.dataplane.observer import Cause, PlaneObserver, SilentObserver
from shared.dataplane.plane import PageMemory, PageRead, ReadGuard, ReadReport
from shared.dataplane.runs import check_targets, coalesce
from shared.dataplane.transfer import LinkLost, Transfer
from shared.errors import Code, StartupError, TransferError

_CLOSE_S: Final = 5.0


class _Pull:
    """A read under way, and the link that must be fenced to stop it."""

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.link: Link | None = None

    async def drain(self, settle_s: float) -> bool:
        """Nothing lands any more once this returned True, or was cancelled."""
        try:
            if self.link is not None:
                self.link.give_up(self.transfer)
                await self.transfer.wait(settle_s)
        finally:
            # No await: no cancellation can come between.
            settled = self.transfer.over or self.link is None or self.link.fence()
        return settled


class LinkedPlane:
    """Implements `Plane` over a wiring. Lives on one event loop."""

    def __init__(
        self,
        wiring: Wiring,
        settings: LinkSettings,
        clock: Clock,
        observer: PlaneObserver | None = None,
    ) -> None:
        self._wiring = wiring
        self._settings = settings
        self._clock = clock
        self._observer: PlaneObserver = observer or SilentObserver()
        self._registered: tuple[PageMemory, ReadGuard] | None = None
        self._parts: PlaneParts | None = None
        self._server: asyncio.Server | None = None
        self._content = UNTOLD
        self._address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: dict[str, Link] = {}
        self._served = 0
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    @property
    def transport(self) -> str:
        """The transports our open links really use; before the first read, the setting."""
        used = sorted({link.transport for link in self._links.values() if link.transport})
        return f"{self._wiring.scheme}:" + ("+".join(used) if used else self._wiring.setting)

    def register(self, memory: PageMemory, guard: ReadGuard, content: str = "") -> None:
        self._registered = (memory, guard)
        self._content = content_digest(content)

    async def start(self) -> None:
        """Load the library and listen. Raises StartupError."""
        if self._registered is None:
            raise StartupError("the data plane was started before any memory was registered")
        memory, guard = self._registered
        settings = self._settings
        budget, key = Budget(settings.total_bytes), new_key()
        parts = PlaneParts(
            memory, guard, self._observer, budget, settings.window_bytes, key, self._content
        )
        try:
            domain = self._wiring.open(parts)
            self._parts = parts
            self._server = await asyncio.start_server(self._accept, settings.host, settings.port)
        except (OSError, ValueError) as error:
            where = f"{settings.host}:{settings.port}"
            raise StartupError(f"the data plane cannot listen on {where}: {error}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        self._address = str(PlaneAddress(host, port, domain, key, self._wiring.scheme))

    def warm(self, peer: str) -> None:
        """See `Plane.warm`."""
        with contextlib.suppress(TransferError):
            self._link(peer)

    async def read(
        self, peer: str, ticket: str, pages: Sequence[PageRead], timeout_s: float
    ) -> ReadReport:
        """See `Plane.read`. May return up to `settle_s` after the deadline."""
        parts = self._running()
        check_targets(parts.memory, pages)
        if len(ticket.encode()) > MAX_TICKET_BYTES:
            raise TransferError("the ticket is too long", Code.INVALID_PARAMETER)
        runs, page_bytes = coalesce(pages), parts.memory.page_bytes
        started_s = self._clock.now()
        transport = ""
        if runs:
            waiting = portions(runs, page_bytes, self._settings.portion_bytes, MAX_PAGES)
            limit_s = asyncio.get_running_loop().time() + timeout_s
            transport = await self._finish(peer, Transfer(ticket, waiting, limit_s))
        seconds = self._clock.now() - started_s
        size_bytes = len(pages) * page_bytes
        if runs:
            self._observer.pulled(transport, size_bytes, seconds)
        return ReadReport(
            len(pages), size_bytes, seconds, f"{self._wiring.scheme}:{transport}", len(runs)
        )

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
        if self._parts is not None:
            self._parts = None
            self._wiring.close()

    # -- reading -------------------------------------------------------------------------

    def _running(self) -> PlaneParts:
        if self._closed or self._parts is None:
            raise TransferError("the data plane is not running")
        return self._parts

    async def _finish(self, peer: str, transfer: Transfer) -> str:
        """Await the read and tell its transport. On timeout or cancellation let what is on its
        way drain, then fence its link."""
        pull = _Pull(transfer)
        try:
            await self._carry(pull, peer)
        except asyncio.CancelledError:
            self._observer.failed(Cause.CANCELLED)
            await pull.drain(self._settings.settle_s)
            raise
        if not transfer.over:
            settled = await pull.drain(self._settings.settle_s)
            self._observer.failed(Cause.TIMEOUT if settled else Cause.UNSETTLED)
            raise TransferError("the read took too long", settled=settled)
        if transfer.failure is not None:
            self._observer.failed(_cause(transfer.failure))
            raise transfer.failure
        return "" if pull.link is None else pull.link.transport

    async def _carry(self, pull: _Pull, peer: str) -> None:
        """Once more on a fresh link when a kept one turned out to be dead."""
        loop, transfer = asyncio.get_running_loop(), pull.transfer
        for _ in range(2):
            transfer.start()
            try:
                pull.link = self._link(peer)
            except TransferError as error:
                transfer.cut_off(error)
                return
            pull.link.submit(transfer)
            await transfer.wait(transfer.limit_s - loop.time())
            if not isinstance(transfer.failure, LinkLost):
                return

    def _link(self, peer: str) -> Link:
        """The kept link to this peer, or a new one that starts to connect."""
        link = self._links.get(peer)
        if link is not None and not link.closed:
            return link
        self._running()
        link = self._wiring.link(parse_address(peer, self._wiring.scheme))
        self._links[peer] = link
        self._spawn(partial(self._keep, peer, link), "plane-link")
        return link

    async def _keep(self, peer: str, link: Link) -> None:
        try:
            await link.run(self._settings.connect_timeout_s)
        finally:
            if self._links.get(peer) is link:
                del self._links[peer]

    # -- serving -------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = FrameStream(reader, writer)
        if self._closed or self._served >= self._settings.max_links:
            self._observer.turned_away(Cause.TOO_MANY)
            stream.abort()
            return
        self._served += 1

        def ended(_: object) -> None:
            self._served -= 1
            stream.abort()

        # Not in the task itself: one that is cancelled before its first turn runs no line.
        self._spawn(partial(self._wiring.serve, stream), "plane-serve").add_done_callback(ended)

    def _spawn(
        self, work: Callable[[], Coroutine[object, object, None]], name: str
    ) -> asyncio.Task[None]:
        """A supervised task that `close` ends and awaits."""
        task = asyncio.get_running_loop().create_task(self._supervise(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervise(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        try:
            await work()
        except Exception:  # noqa: BLE001 - one broken link must not take the process down
            self._observer.failed(Cause.INTERNAL)


def _cause(failure: TransferError) -> Cause:
    if not failure.settled:
        return Cause.UNSETTLED
    match failure.code:
        case Code.STALE:
            return Cause.REFUSED
        case Code.INCOMPATIBLE_WORKERS:
            return Cause.INCOMPATIBLE
        case _:
            return Cause.UNREACHABLE if isinstance(failure, LinkLost) else Cause.LOST
