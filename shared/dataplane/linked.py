"""A plane made of links: listens, keeps one link per peer it reads, and ends every read cleanly.

What moves bytes is an adapter's `Wiring`. Knows no transport library, no requests and no leases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final

from shared.dataplane.deadlines import Deadlines
from shared.dataplane.flow import Budget, portions, room
from shared.dataplane.link_address import PlaneAddress, new_key, parse_address
from shared.dataplane.link_parts import Link, LinkSettings, PlaneParts, Wiring
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.link_wire import MAX_PAGES, MAX_TICKET_BYTES, UNTOLD, content_digest
from shared.dataplane.observer import Cause, PlaneObserver, SilentObserver
from shared.dataplane.plane import PageMemory, PageRead, ReadGuard, ReadReport
from shared.dataplane.runs import Run, check_targets, coalesce
from shared.dataplane.transfer import LinkLost, Transfer
from shared.errors import Code, StartupError, TransferError

_CLOSE_S: Final = 5.0


class LinkedPlane:
    """Implements `Plane` over a wiring. Lives on one event loop."""

    def __init__(
        self,
        wiring: Wiring,
        settings: LinkSettings,
        observer: PlaneObserver | None = None,
    ) -> None:
        self._wiring = wiring
        self._settings = settings
        self._observer: PlaneObserver = observer or SilentObserver()
        self._registered: tuple[PageMemory, ReadGuard] | None = None
        self._parts: PlaneParts | None = None
        self._server: asyncio.Server | None = None
        self._content = UNTOLD
        self._address = ""
        self._page_bytes = 0
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
        parts = PlaneParts(
            memory=memory,
            guard=guard,
            observer=self._observer,
            budget=Budget(settings.total_bytes),
            deadlines=Deadlines(),
            window_bytes=settings.window_bytes,
            room=room(memory.page_bytes, settings.portion_bytes, MAX_PAGES),
            key=new_key(),
            content=self._content,
        )
        try:
            domain = self._wiring.open(parts)
            self._parts = parts
            self._server = await asyncio.start_server(self._accept, settings.host, settings.port)
        except (OSError, ValueError) as error:
            where = f"{settings.host}:{settings.port}"
            raise StartupError(f"the data plane cannot listen on {where}: {error}") from error
        self._page_bytes = memory.page_bytes
        host, port = self._server.sockets[0].getsockname()[:2]
        self._address = str(PlaneAddress(host, port, domain, parts.key, self._wiring.scheme))

    def warm(self, peer: str) -> None:
        """See `Plane.warm`."""
        with contextlib.suppress(TransferError):
            self._link(peer)

    async def read(
        self, peer: str, ticket: str, pages: Sequence[PageRead], timeout_s: float
    ) -> ReadReport:
        """See `Plane.read`. May return up to `settle_s` after the deadline."""
        link = self._links.get(peer)
        transfer = None if link is None else link.start(ticket, pages, timeout_s)
        runs = 1
        if link is None or transfer is None:
            found = self._checked(ticket, pages)
            if not found:
                return ReadReport(0, 0, 0.0, f"{self._wiring.scheme}:", 0)
            runs = len(found)
            link = self._link_or_fail(peer)
            transfer = self._submitted(link, ticket, found, timeout_s)
        try:
            await transfer.wait(transfer.limit_s)
        except asyncio.CancelledError:
            await self._abandon(transfer, link)
            raise
        if transfer.failure is not None or not transfer.over:
            link = await self._mend(peer, transfer, link)
        count, size_bytes = len(pages), len(pages) * self._page_bytes
        seconds, transport = transfer.seconds, link.transport
        self._observer.pulled(transport, size_bytes, seconds)
        return ReadReport(count, size_bytes, seconds, f"{self._wiring.scheme}:{transport}", runs)

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
            self._parts.deadlines.close()
            self._parts = None
            self._wiring.close()

    # -- reading -------------------------------------------------------------------------

    def _running(self) -> PlaneParts:
        if self._closed or self._parts is None:
            raise TransferError("the data plane is not running")
        return self._parts

    def _checked(self, ticket: str, pages: Sequence[PageRead]) -> tuple[Run, ...]:
        """The runs of a read that may be asked for. Raises TransferError."""
        runs = coalesce(pages)
        check_targets(self._running().memory, runs)
        if len(ticket.encode()) > MAX_TICKET_BYTES:
            raise TransferError("the ticket is too long", Code.INVALID_PARAMETER)
        return runs

    def _submitted(
        self, link: Link, ticket: str, runs: tuple[Run, ...], timeout_s: float
    ) -> Transfer:
        parts = self._running()
        deadlines, page_bytes = parts.deadlines, parts.memory.page_bytes
        waiting = portions(runs, page_bytes, parts.room)
        transfer = Transfer(ticket, waiting, deadlines.now() + timeout_s, deadlines)
        link.submit(transfer)
        return transfer

    async def _mend(self, peer: str, transfer: Transfer, link: Link) -> Link:
        """A read did not deliver: once more on a fresh link, which is returned, where a kept one
        turned out to be dead; otherwise its failure is raised, after a timeout when what is on its
        way has drained."""
        if isinstance(transfer.failure, LinkLost):
            transfer.start_anew()
            link = self._link_or_fail(peer)
            link.submit(transfer)
            try:
                await transfer.wait(transfer.limit_s)
            except asyncio.CancelledError:
                await self._abandon(transfer, link)
                raise
        if not transfer.over:
            settled = await self._drain(transfer, link)
            self._observer.failed(Cause.TIMEOUT if settled else Cause.UNSETTLED)
            raise TransferError("the read took too long", settled=settled)
        if transfer.failure is not None:
            self._observer.failed(_cause(transfer.failure))
            raise transfer.failure
        return link

    async def _abandon(self, transfer: Transfer, link: Link) -> None:
        """Who awaited the read was cancelled."""
        self._observer.failed(Cause.CANCELLED)
        await self._drain(transfer, link)

    async def _drain(self, transfer: Transfer, link: Link) -> bool:
        """Nothing lands any more once this returned True, or was cancelled."""
        try:
            link.give_up(transfer)
            await transfer.wait(asyncio.get_running_loop().time() + self._settings.settle_s)
        finally:
            # No await: no cancellation can come between.
            settled = transfer.over or link.fence()
        return settled

    def _link_or_fail(self, peer: str) -> Link:
        try:
            return self._link(peer)
        except TransferError as error:
            self._observer.failed(_cause(error))
            raise

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
