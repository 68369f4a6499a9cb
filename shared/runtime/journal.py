"""The numbered history of a worker's findable blocks: events, snapshots in parts, digest.

Owns the numbering (dense, from 1, per incarnation); sends nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, Protocol

from shared.errors import Code, RefusedError
from shared.ids import BlockHash, Epoch, WorkerId
from shared.kv.radix import Removed, Stored
from shared.telemetry.metrics import Metrics
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.workers import BlockCount

SNAPSHOT_BLOCKS: Final = 4_096
UNSENT_EVENTS: Final = 8192
_SNAPSHOTS: Final = 2
"""Taken at once: the leading scheduler and its standby may both be reading."""

BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared


class BlockSource(Protocol):
    """Who knows the blocks (a PageCache does)."""

    def blocks(self) -> tuple[BlockHash, ...]:
        """All findable blocks, parents before children."""
        ...

    def digest(self) -> tuple[int, str]:
        """Count of those blocks and the sum of their names mod 2^128, as 32 hex characters."""
        ...


class Evictions:
    """Counts the blocks that a worker's cache gave up for others."""

    def __init__(self, metrics: Metrics) -> None:
        counter = metrics.counter(
            "baton_page_evictions_total", "Cached pages given to others.", ("reason",)
        )
        self._capacity = counter.labels("capacity")

    def seen(self, events: Iterable[Stored | Removed]) -> None:
        gone = sum(len(event.blocks) for event in events if isinstance(event, Removed))
        if gone:
            self._capacity.inc(gone)


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
        self._snapshots: OrderedDict[int, tuple[BlockHash, ...]] = OrderedDict()

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

    def part(self, chunk: int, sequence: int = 0) -> BlockSnapshot:
        """Part `chunk` of all blocks. Part 0 takes a snapshot, true at the event number that it
        carries; later parts name that number, 0 for the newest. Raises RefusedError for a part
        that is none (any more)."""
        if chunk == 0:
            sequence = self._take_snapshot()
        number = sequence or next(reversed(self._snapshots), 0)
        blocks = self._snapshots.get(number, ())
        chunks = max(1, -(-len(blocks) // SNAPSHOT_BLOCKS))
        if not 0 <= chunk < chunks:
            raise RefusedError("there is no such part; begin at 0", Code.STALE)
        first = chunk * SNAPSHOT_BLOCKS
        part = blocks[first : first + SNAPSHOT_BLOCKS]
        if chunks == 1:
            self._snapshots.pop(number, None)
        return BlockSnapshot(self._worker, self.epoch, number, self._tier, chunk, chunks, part)

    def _take_snapshot(self) -> int:
        """The same again while nothing changed."""
        if self._number not in self._snapshots:
            self._snapshots[self._number] = self._source.blocks()
        self._snapshots.move_to_end(self._number)
        while len(self._snapshots) > _SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return self._number

    def _queue(self, event: BlockEvent) -> None:
        if len(self._unsent) < UNSENT_EVENTS:
            self._unsent.append(event)
        else:
            self.lost += 1
