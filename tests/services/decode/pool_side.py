"""A pool node as decode sees it: takes offered pages in byte by byte, and lends them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.engine.batch import Engine
from shared.ids import BlockHash, Epoch, Generation, PageId, WorkerId
from shared.kv.cache import PageCache
from shared.wire.blocks import BlocksFound, LookupBlocks, OfferBlocks, ReleaseBlocks
from shared.wire.requests import PageRef, WorkerRef

from .prefill_side import build

POOL = WorkerRef(WorkerId("kvpool-0"), Epoch(2), "plane-pool")


@dataclass
class PoolSide:
    """Keeps everything that it could read. `alive` and `honest` are up to the test."""

    engine: Engine = field(default_factory=lambda: build(256))
    alive: bool = True
    kept: dict[BlockHash, PageRef] = field(default_factory=dict)
    tickets: set[str] = field(default_factory=set)
    damaged: list[BlockHash] = field(default_factory=list)
    asked: int = 0

    def take(
        self, offer: OfferBlocks, cache: PageCache, source: Engine, now: float
    ) -> tuple[int, int | None]:
        """Pull what is offered: (blocks kept, read that is open); the copy is made at once."""
        if not self.alive or (offer.parent is not None and offer.parent not in self.kept):
            return 0, None
        wanted = [(ref.page, ref.generation) for ref in offer.pages]
        read = cache.open_read(offer.ticket, wanted, now)
        if read is None:
            return 0, None
        for ref in offer.pages:
            assert ref.block is not None
            if ref.block in self.kept:
                continue
            page = PageId(len(self.kept))
            self.page_bytes(page)[:] = memoryview(source.memory.run(ref.page, 1)).cast("B")
            assert self.engine.checksums([page]) == (ref.checksum,), "torn while it was read"
            self.kept[ref.block] = PageRef(
                0, page, Generation(1), ref.tokens, ref.checksum, ref.block
            )
        return len(offer.pages), read

    def look_up(self, lookup: LookupBlocks) -> BlocksFound | None:
        """The longest leading run that is held."""
        self.asked += 1
        if not self.alive:
            return None
        run: list[PageRef] = []
        for at, block in enumerate(lookup.blocks, lookup.first_position):
            held = self.kept.get(block)
            if held is None:
                break
            run.append(PageRef(at, held.page, held.generation, held.tokens, held.checksum, block))
        ticket = f"pool-{self.asked}"
        if run:
            self.tickets.add(ticket)
        return BlocksFound(POOL, ticket, 30.0, tuple(run))

    def release(self, release: ReleaseBlocks) -> None:
        self.tickets.discard(release.ticket)
        self.damaged.extend(release.corrupted)

    def page_bytes(self, page: PageId) -> memoryview:
        return memoryview(self.engine.memory.run(page, 1)).cast("B")

    def spoil(self, change: Callable[[memoryview], None], blocks: Sequence[BlockHash]) -> None:
        for block in blocks:
            change(self.page_bytes(self.kept[block].page))
