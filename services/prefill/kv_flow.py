"""Pages in and out of this worker: peers' reads are guarded, the pool is asked, read, offered to.

Bytes from the pool count only after their checksum was computed on the engine thread. Every
failure of the pool becomes an ordinary event; the machine then computes instead.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from services.prefill.core import events as on
from services.prefill.core.actions import Lookup, Offer, Pull, ReleasePool
from services.prefill.core.machine import Machine
from shared.bus.headers import Headers
from shared.clock import Clock
from shared.dataplane.plane import Plane
from shared.engine.executor import Executor
from shared.errors import BusError, Code, EngineError, TransferError
from shared.ids import Epoch, Generation, PageId, WorkerId
from shared.runtime.retry import Sender
from shared.wire import subjects
from shared.wire.blocks import BlocksFound, BlocksKept
from shared.wire.workers import WorkerLost

_RELEASE_S: Final = 5.0
_KNOWN_PEERS: Final = 256


class Guard:
    """Implements ReadGuard over a machine; refuses every read until it has one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machine: Machine | None = None
        self._feed: Callable[[on.Event], None] | None = None

    def attach(self, machine: Machine, feed: Callable[[on.Event], None]) -> None:
        self._machine, self._feed = machine, feed

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        if self._machine is None:
            return None
        return self._machine.open_read(ticket, pages, self._clock.now())

    def close_read(self, read: int) -> None:
        if self._feed is not None:
            self._feed(on.ReadEnded(read))


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Seconds that the pool may take."""

    fetch_s: float
    offer_s: float
    """Below the lease, so that the pool is not left reading pages without one."""


class PoolFlow:
    """This worker's dealings with pool nodes, and with prefill workers that lend it blocks.
    `measured` is told of each read: whose pages, bytes, seconds."""

    def __init__(
        self,
        sender: Sender,
        plane: Plane,
        executor: Executor,
        limits: FlowLimits,
        peer_lost: Callable[[WorkerId], None],
        measured: Callable[[WorkerId, int, float], None],
    ) -> None:
        self._sender = sender
        self._bus = sender.bus
        self._plane = plane
        self._executor = executor
        self._limits = limits
        self._peer_lost = peer_lost
        self._measured = measured
        self._addresses: OrderedDict[tuple[WorkerId, Epoch], str] = OrderedDict()

    async def look_up(self, wish: Lookup, headers: Headers) -> on.Event:
        """Ask once: who has to be asked twice is no shortcut."""
        subject, key = _subject(wish.pool.worker, wish.peer), (wish.request, wish.attempt)
        self._plane.warm(wish.pool.plane_address)
        try:
            reply = await self._bus.request(subject, wish.lookup, headers, self._limits.fetch_s)
        except BusError as error:
            return on.PoolMissed(*key, f"{wish.pool.worker} does not answer: {error.code}")
        if isinstance(reply, BlocksFound) and reply.pages:
            self._remember(reply)
            return on.PoolFound(*key, reply, wish.peer)
        return on.PoolMissed(*key, f"{wish.pool.worker} has nothing of it")

    async def pull(self, wish: Pull) -> on.PullEnded:
        """Read and verify. When this returns nothing lands any more, unless it says so."""
        owner, key = wish.source.owner, (wish.request, wish.attempt)
        reads = [page.read for page in wish.pages]
        try:
            report = await self._plane.read(
                owner.plane_address, wish.source.ticket, reads, self._limits.fetch_s
            )
            self._measured(owner.worker, report.bytes, report.seconds)
            sums = await self._executor.checksums([read.target for read in reads])
        except TransferError as error:
            if error.code != Code.STALE:
                self._peer_lost(owner.worker)
            return on.PullEnded(*key, (), settled=error.settled)
        except EngineError:
            return on.PullEnded(*key, ())
        good = tuple(
            on.PulledPage(page.position, checksum)
            for page, checksum in zip(wish.pages, sums, strict=True)
            if checksum == page.checksum
        )
        return on.PullEnded(*key, good, damaged=len(reads) - len(good))

    async def release(self, wish: ReleasePool) -> None:
        """The lease would run out by itself: worth a few tries, no more."""
        subject = _subject(wish.pool.worker, wish.peer)
        with contextlib.suppress(BusError):
            await self._sender.send(subject, wish.release, Headers(), _RELEASE_S)

    async def offer(self, wish: Offer, headers: Headers) -> on.OfferEnded:
        """Wait while the pool pulls what it wants."""
        subject = subjects.pool(wish.pool.worker)
        try:
            reply = await self._bus.request(subject, wish.offer, headers, self._limits.offer_s)
        except BusError:
            return on.OfferEnded(wish.request, wish.attempt, 0)
        kept = reply.kept if isinstance(reply, BlocksKept) else 0
        return on.OfferEnded(wish.request, wish.attempt, kept)

    async def forget(self, lost: WorkerLost) -> None:
        """Close the links to the incarnations that are dead."""
        for worker, epoch in list(self._addresses):
            if worker == lost.worker and epoch <= lost.epoch:
                await self._plane.forget(self._addresses.pop((worker, epoch)))

    def _remember(self, found: BlocksFound) -> None:
        owner = found.owner
        self._addresses[owner.worker, owner.epoch] = owner.plane_address
        while len(self._addresses) > _KNOWN_PEERS:
            self._addresses.popitem(last=False)


def _subject(worker: WorkerId, peer: bool) -> str:
    """Where the owner of blocks answers."""
    return subjects.lookups(worker) if peer else subjects.pool(worker)
