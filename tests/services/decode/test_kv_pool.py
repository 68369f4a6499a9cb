"""The pool seen from a live worker: it reads offered pages under their ticket, and lends them."""

from __future__ import annotations

import asyncio

from shared.bus.bus import Delivery
from shared.bus.memory import MemoryBus
from shared.costs import LinkCosts
from shared.dataplane.plane import PageRead
from shared.errors import TransferError
from shared.ids import Epoch, Generation, PageId, WorkerId
from shared.wire import subjects
from shared.wire.blocks import BlocksFound, BlocksKept, LookupBlocks, OfferBlocks, ReleaseBlocks
from shared.wire.codec import Message
from shared.wire.requests import Accepted, Acknowledged, PageRef, WorkerRef

from .pool_side import PoolSide
from .prefill_side import undisturbed
from .rig import job
from .stage import Stage, running

POOL = WorkerRef(WorkerId("kvpool-0"), Epoch(2), "memory:kvpool")


class OpenGuard:
    """Everybody may read what the pool holds."""

    def open_read(self, ticket: str, pages: object) -> int | None:
        return 1 if ticket.startswith("pool-") else None

    def close_read(self, read: int) -> None:
        return


class LivePool:
    """A pool node on the in-memory bus and plane."""

    def __init__(self, stage: Stage) -> None:
        self.side = PoolSide()
        self.released: list[ReleaseBlocks] = []
        self.stale: list[str] = []
        self._bus = MemoryBus(stage.broker, "kvpool-0", "kvpool")
        self._plane = stage.fabric.plane("kvpool")

    async def open(self) -> None:
        self._plane.register(self.side.engine.memory, OpenGuard())
        await self._plane.start()
        await self._bus.subscribe(subjects.pool(POOL.worker), self._serve)

    async def _serve(self, delivery: Delivery) -> Message | None:
        match delivery.message:
            case OfferBlocks() as offer:
                return BlocksKept(offer.ticket, await self._take(offer))
            case LookupBlocks() as lookup:
                found = self.side.look_up(lookup)
                return found and BlocksFound(POOL, found.ticket, found.lease_s, found.pages)
            case ReleaseBlocks() as release:
                self.released.append(release)
                return Acknowledged()
        raise AssertionError(delivery.message)

    async def _take(self, offer: OfferBlocks) -> int:
        fresh = [ref for ref in offer.pages if ref.block not in self.side.kept]
        places = range(len(self.side.kept), len(self.side.kept) + len(fresh))
        reads = [
            PageRead(ref.page, ref.generation, PageId(at))
            for ref, at in zip(fresh, places, strict=True)
        ]
        try:
            await self._plane.read(offer.owner.plane_address, offer.ticket, reads, 5.0)
        except TransferError as error:
            self.stale.append(error.code.value)
            return 0
        for ref, read in zip(fresh, reads, strict=True):
            assert self.side.engine.checksums([read.target]) == (ref.checksum,)
            assert ref.block is not None
            self.side.kept[ref.block] = PageRef(
                0, read.target, Generation(1), ref.tokens, ref.checksum, ref.block
            )
        return len(offer.pages)


async def test_offered_blocks_are_read_kept_and_fetched_back() -> None:
    async with running(kv_pages=34, forecast=False, step_tokens=64) as stage:
        pool = LivePool(stage)
        await pool.open()
        stage.machine.fetching._link = LinkCosts(0.0, 1e15)
        jobs = [
            job(f"r{n}", tokens=[n, *range(23)], max_tokens=64, prefill=None, kvpool=POOL)
            for n in range(3)
        ]
        answers = await asyncio.gather(*(stage.submit(one) for one in jobs))
        assert all(isinstance(answer, Accepted) for answer in answers)
        await stage.until(lambda: all(stage.logs[one.request].finish for one in jobs))
        for one in jobs:
            log = stage.logs[one.request]
            assert (log.text(), log.finish) == undisturbed(one)
        counts = stage.machine.counts
        assert counts["preemptions"] >= 1 and counts["blocks_kept"] >= 4
        assert set(pool.stale) <= {"stale"}, "a withdrawn offer is refused, nothing else"
        await stage.until(lambda: not any(stage.held()))


async def test_without_a_ticket_nobody_reads_this_worker() -> None:
    async with running() as stage:
        plane = stage.fabric.plane("stranger")
        plane.register(PoolSide().engine.memory, OpenGuard())
        await plane.start()
        reads = [PageRead(PageId(0), Generation(1), PageId(0))]
        try:
            await plane.read("memory:decode", "guessed", reads, 5.0)
        except TransferError as error:
            assert error.code.value == "stale"
        else:
            raise AssertionError("the read was served")
