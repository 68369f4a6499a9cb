"""Bytes into the arena and proof of them: one read from an owner, hashed off the event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from services.kvpool.arena import HostArena
from services.kvpool.core.actions import Pull
from services.kvpool.core.events import PullEnded, PullFailed
from shared.dataplane.plane import Plane
from shared.errors import Code, TransferError
from shared.ids import Epoch, WorkerId
from shared.telemetry.trace import Span, Tracer, Value
from shared.wire.workers import WorkerLost

_KNOWN_PEERS: Final = 256


class Puller:
    """Runs pulls. Every failure is an event; `peer_lost` hears of owners that did not answer."""

    def __init__(
        self,
        plane: Plane,
        arena: HostArena,
        tracer: Tracer,
        peer_lost: Callable[[WorkerId], None],
    ) -> None:
        self._plane = plane
        self._arena = arena
        self._tracer = tracer
        self._peer_lost = peer_lost
        self._hasher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checksums")
        self._addresses: OrderedDict[tuple[WorkerId, Epoch], str] = OrderedDict()

    async def pull(self, wish: Pull, traceparent: str) -> PullEnded | PullFailed:
        """Read and hash. When this returns nothing lands any more, unless it says so."""
        self._remember(wish)
        attributes: dict[str, Value] = {
            "baton.transfer.peer": wish.owner.worker,
            "baton.transfer.tier": "host",
            "baton.transfer.exposed_s": 0.0,  # nobody waits for a copy
            "baton.transfer.retries": 0,
        }
        with self._tracer.start("transfer.pull", traceparent, attributes) as span:
            try:
                await self._read(wish, span)
            except TransferError as error:
                if error.code != Code.STALE:
                    self._peer_lost(wish.owner.worker)
                span.end(error.code)
                return PullFailed(wish.pull, error.settled, error.code)
            targets = [read.target for read in wish.reads]
            loop = asyncio.get_running_loop()
            sums = await loop.run_in_executor(self._hasher, self._arena.checksums, targets)
            return PullEnded(wish.pull, sums)

    async def forget(self, lost: WorkerLost) -> None:
        """Close the links to the incarnations that are dead; their pulls fail with that."""
        for worker, epoch in list(self._addresses):
            if worker == lost.worker and epoch <= lost.epoch:
                await self._plane.forget(self._addresses.pop((worker, epoch)))

    def close(self) -> None:
        self._hasher.shutdown(wait=False, cancel_futures=True)

    async def _read(self, wish: Pull, span: Span) -> None:
        address = wish.owner.plane_address
        report = await self._plane.read(address, wish.ticket, wish.reads, wish.timeout_s)
        span.set("baton.transfer.transport", report.transport)
        span.set("baton.transfer.pages", report.pages)
        span.set("baton.transfer.runs", report.runs)
        span.set("baton.transfer.bytes_raw", report.bytes)
        span.set("baton.transfer.bytes_wire", report.bytes)
        span.set("baton.transfer.bytes_per_s", report.bytes / max(report.seconds, 1e-9))

    def _remember(self, wish: Pull) -> None:
        owner = wish.owner
        self._addresses[owner.worker, owner.epoch] = owner.plane_address
        self._addresses.move_to_end((owner.worker, owner.epoch))
        while len(self._addresses) > _KNOWN_PEERS:
            self._addresses.popitem(last=False)
