"""Pages into this worker: reads from prefill workers, proof of their bytes, leases at the owners.

Every failure becomes an ordinary event; the core decides what it means.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from services.decode.core import actions as do
from services.decode.core import events as on
from shared.bus.bus import Bus
from shared.bus.headers import Headers
from shared.dataplane.plane import Plane
from shared.engine.executor import Executor
from shared.errors import BusError, Code, EngineError, TransferError, WireError
from shared.ids import Epoch, WorkerId
from shared.wire import subjects
from shared.wire.requests import (
    Acknowledged,
    LeasesRenewed,
    ReleaseLease,
    RenewLeases,
    WorkerRef,
)
from shared.wire.workers import WorkerLost

_NOT_LOST: Final = (Code.STALE, Code.INCOMPATIBLE_WORKERS)
"""Failed reads that say nothing against the peer's life."""
_ANSWER_S: Final = 2.0
_KNOWN_PEERS: Final = 256


class KvInbox:
    """This worker's dealings with prefill workers and their pages."""

    def __init__(
        self,
        bus: Bus,
        plane: Plane,
        executor: Executor,
        reader: Callable[[], tuple[WorkerId, Epoch]],
        peer_lost: Callable[[WorkerId], None],
        pull_timeout_s: float,
    ) -> None:
        self._bus = bus
        self._plane = plane
        self._executor = executor
        self._reader = reader
        self._peer_lost = peer_lost
        self._pull_timeout_s = pull_timeout_s
        self._addresses: OrderedDict[tuple[WorkerId, Epoch], str] = OrderedDict()

    def expect(self, peer: WorkerRef) -> None:
        """This peer will announce pages soon: the link shall be there by then."""
        self._remember(peer)
        self._plane.warm(peer.plane_address)

    async def pull(self, wish: do.Pull) -> on.PullEnded:
        """Read. When this returns nothing lands any more, unless it says so."""
        self._remember(wish.peer)
        address = wish.peer.plane_address
        try:
            report = await self._plane.read(address, wish.ticket, wish.reads, self._pull_timeout_s)
        except TransferError as error:
            if error.code not in _NOT_LOST:
                self._peer_lost(wish.peer.worker)
            return on.PullEnded(
                wish.pull, error.code, error.settled, transport=self._plane.transport
            )
        return on.PullEnded(wish.pull, None, True, report.bytes, report.runs, report.transport)

    async def verify(self, wish: do.Verify) -> on.Verified:
        """Checksums on the engine thread, between two steps."""
        try:
            return on.Verified(wish.pull, await self._executor.checksums(wish.pages, wish.ranks))
        except EngineError:
            return on.Verified(wish.pull, ())

    async def checksum(self, wish: do.Checksum) -> on.Checksummed:
        try:
            return on.Checksummed(wish.seal, await self._executor.checksums(wish.pages))
        except EngineError:
            return on.Checksummed(wish.seal, ())

    async def renew(self, wish: do.RenewLeases) -> on.LeasesAnswered | None:
        """Ask once; the next renewal is not far."""
        message = RenewLeases(*self._reader(), wish.leases)
        headers = Headers(epoch=message.epoch)
        subject = subjects.leases(wish.peer.worker)
        try:
            reply = await self._bus.request(subject, message, headers, _ANSWER_S)
        except (BusError, WireError):
            return None
        if not isinstance(reply, LeasesRenewed):
            return None
        return on.LeasesAnswered(wish.peer, wish.asked_s, reply.gone)

    async def release(self, wish: do.Release, traceparent: str) -> on.ReleaseAcknowledged | None:
        """Ask once; the core asks again."""
        message = ReleaseLease(*self._reader(), wish.lease, wish.reason)
        headers = Headers(traceparent=traceparent, epoch=message.epoch)
        subject = subjects.leases(wish.peer.worker)
        try:
            reply = await self._bus.request(subject, message, headers, _ANSWER_S)
        except (BusError, WireError):
            return None
        return on.ReleaseAcknowledged(wish.lease) if isinstance(reply, Acknowledged) else None

    async def forget(self, lost: WorkerLost) -> None:
        """Close the links to the incarnations that are dead; their pulls fail with that."""
        for worker, epoch in list(self._addresses):
            if worker == lost.worker and epoch <= lost.epoch:
                await self._plane.forget(self._addresses.pop((worker, epoch)))

    def _remember(self, peer: WorkerRef) -> None:
        key = (peer.worker, peer.epoch)
        self._addresses[key] = peer.plane_address
        self._addresses.move_to_end(key)
        while len(self._addresses) > _KNOWN_PEERS:
            self._addresses.popitem(last=False)
