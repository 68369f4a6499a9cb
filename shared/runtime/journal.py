"""The numbered history of a worker's findable blocks: events, snapshots in parts, digest.

Owns the numbering (dense, from 1, per incarnation); sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from shared.errors import Code, RefusedError
from shared.ids import BlockHash, Epoch, WorkerId
from shared.kv.radix import Removed, Stored
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.workers import BlockCount

SNAPSHOT_BLOCKS: Final = 16_384
UNSENT_EVENTS: Final = 8192

BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared


class BlockSource(Protocol):
    """Who knows the blocks (a PageCache does)."""

    def blocks(self) -> tuple[BlockHash, ...]:
        """All findable blocks, parents before children."""
        ...

    def digest(self) -> tuple[int, str]:
        """Count of those blocks and the sum of their names mod 2^128, as 32 hex characters."""
        ...


class BlockJournal:
    """Call `record` right after the cache changed, before the next await, so that numbers, digest
    and snapshots stay in step. An event that finds the queue full leaves a gap in the numbers."""

    def __init__(self, worker: WorkerId, tier: str, source: BlockSource) -> None:
        self.epoch = Epoch(0)
        self.lost = 0
        self._worker = worker
        self._tier = tier
        self._source = source
        self._number = 0
        self._unsent: deque[BlockEvent] = deque()
        self._snapshot: tuple[int, tuple[BlockHash, ...]] = (0, ())

    def record(self, events: Iterable[Stored | Removed]) -> None:
        for event in events:
            self._number += 1
            head = (self._worker, self.epoch, self._number, self._tier)
            match event:
                case Stored(parent, blocks):
                    self._queue(BlocksStored(*head, parent, blocks))
                case Removed(blocks):
                    self._queue(BlocksRemoved(*head, blocks))

    def record_cleared(self) -> None:
        self._number += 1
        self._queue(BlocksCleared(self._worker, self.epoch, self._number))

    def next(self) -> BlockEvent | None:
        """The oldest event that was not taken yet."""
        return self._unsent.popleft() if self._unsent else None

    def count(self) -> BlockCount:
        blocks, digest = self._source.digest()
        return BlockCount(self._number, blocks, digest)

    def part(self, chunk: int) -> BlockSnapshot:
        """Part `chunk` of all blocks; part 0 takes the snapshot, the last one lets it go. Parts
        of one snapshot carry the same event number. Raises RefusedError for a part that is none."""
        if chunk == 0:
            self._snapshot = (self._number, self._source.blocks())
        number, blocks = self._snapshot
        chunks = max(1, -(-len(blocks) // SNAPSHOT_BLOCKS))
        if not 0 <= chunk < chunks:
            raise RefusedError("there is no such part; begin at 0", Code.STALE)
        if chunk == chunks - 1:
            self._snapshot = (0, ())
        first = chunk * SNAPSHOT_BLOCKS
        part = blocks[first : first + SNAPSHOT_BLOCKS]
        return BlockSnapshot(self._worker, self.epoch, number, self._tier, chunk, chunks, part)

    def _queue(self, event: BlockEvent) -> None:
        if len(self._unsent) < UNSENT_EVENTS:
            self._unsent.append(event)
        else:
            self.lost += 1
