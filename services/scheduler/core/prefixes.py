"""Which workers hold which blocks: an index built from numbered block events.

Lost, late or repeated events cost cache hits, never correctness. A gap in the numbers or a
digest that disagrees with a heartbeat makes the worker's part be rebuilt from a snapshot, part by
part, while lookups go on (algorithms: exact block-event index with resync).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from services.scheduler.core.ghosts import Ghosts
from services.scheduler.core.holders import HolderTable
from services.scheduler.core.lookup import Match
from services.scheduler.core.predictions import Predictions
from services.scheduler.core.slots import Slots
from services.scheduler.core.streams import (
    DIGEST_MODULUS,
    MOST_HELD,
    MOST_PARTS,
    MOST_SNAPSHOT_BLOCKS,
    TIERS,
    WINDOW,
    BlockEvent,
    Holding,
    Snapshot,
    Stream,
    key,
    number,
)
from shared.ids import BlockHash, Epoch, WorkerId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.workers import BlockCount

INDEX_BYTES: Final = 256 << 20
_ANY_BLOCKS: Final = 1 << 40
_SWEPT_AT_ONCE: Final = 4096
_WAITING_TOUCHES: Final = 64
_FROM_HEX: Final = bytes.fromhex
"""Whatever is no name is in no table."""


class PrefixIndex:
    """Block name -> slots that hold it; a slot is one tier of one worker. Forgetting a worker
    hides its blocks at once and takes them out of the table bit by bit."""

    def __init__(self, limit_bytes: int = INDEX_BYTES) -> None:
        self._streams: dict[WorkerId, Stream] = {}
        self._table = HolderTable(limit_bytes)
        self._predictions = Predictions()
        self.slots = Slots()
        self.ghosts = Ghosts()
        self._touched: deque[tuple[Sequence[BlockHash], int]] = deque(maxlen=_WAITING_TOUCHES)
        self.resyncs: Counter[str] = Counter()
        """Snapshots begun, by cause: 'new' worker, 'gap', 'behind', 'digest'."""
        self.odd: Counter[str] = Counter()
        """What no honest worker sends, and was contained."""
        self.refused = 0

    @property
    def blocks(self) -> int:
        """Distinct block names with at least one holder."""
        return len(self._table)

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the table."""
        return self._table.size_bytes

    @property
    def dropped(self) -> int:
        """Blocks forgotten because the table was full."""
        return self._table.dropped

    # -- lookups -------------------------------------------------------------------------

    def match(self, hashes: Sequence[BlockHash], now: float) -> Match:
        """The chain of one request against all caches."""
        predicted = self._predictions.depths(hashes, now)
        table, alive = self._table, self.slots.alive
        found = Match(hashes, table.look(alive), predicted, table.lookup(alive))
        if table.ageing:
            deepest = found.deepest(alive, 1)
            if deepest:
                self._touched.append((hashes, deepest[0][1]))
        return found

    def depths(self, hashes: Sequence[BlockHash], now: float) -> dict[WorkerId, int]:
        """Per worker the number of leading blocks it holds or was just given to compute."""
        depths: dict[WorkerId, int] = {}
        slots = self.slots
        for slot, depth in self.match(hashes, now).deepest(slots.alive, len(slots)):
            owner = slots.owner(slot)
            if owner is not None:
                depths[owner[0]] = max(depth, depths.get(owner[0], 0))
        return depths

    def slot(self, worker: WorkerId, tier: str) -> int | None:
        """Its slot in this tier, once it has had a block there."""
        stream = self._streams.get(worker)
        holding = None if stream is None else stream.holdings.get(tier)
        return None if holding is None else holding.slot

    def holders(self, block: BlockHash) -> Iterator[tuple[WorkerId, str]]:
        """Who holds this block, and in which tier."""
        return self.slots.owners(self._table.look(self.slots.alive)(block))

    def listed(self, worker: WorkerId) -> int:
        """How many of its blocks are known."""
        stream = self._streams.get(worker)
        return 0 if stream is None else stream.listed

    def predict(self, worker: WorkerId, hashes: Sequence[BlockHash], now: float) -> None:
        """Remember a placement for a few seconds, so that siblings of a burst meet."""
        stream = self._streams.get(worker)
        if stream is not None:
            self._predictions.add(self._holding(worker, stream, "device").slot, hashes, now)

    def expire(self, now: float) -> None:
        """Drop old predictions, and a slice of what the gone have left behind."""
        self._predictions.expire(now)
        self._tidy()

    # -- events --------------------------------------------------------------------------

    def follow(self, worker: WorkerId, epoch: Epoch, most_blocks: int = _ANY_BLOCKS) -> None:
        """Start (or restart) a worker's stream at this epoch, empty."""
        known = self._streams.get(worker)
        if known is None or known.epoch < epoch:
            self.forget(worker)
            self._streams[worker] = Stream(epoch, most_blocks)
        else:
            known.most_blocks = most_blocks

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone: none of its blocks can be found any more."""
        stream = self._streams.pop(worker, None)
        if stream is None:
            return
        for holding in stream.holdings.values():
            self._predictions.forget(holding.slot)
        self.slots.retire(stream.holdings.values())
        self._tidy()

    def apply(self, event: BlockEvent) -> bool:
        """Take in an event; True when a snapshot is needed now."""
        stream = self._streams.get(event.worker)
        if stream is None or event.epoch != stream.epoch:
            self.refused += 1
            return False
        if event.sequence <= stream.sequence:
            return False
        if event.sequence > stream.sequence + WINDOW:
            self.odd["far_ahead"] += 1
            return self._begin_snapshot(stream, "gap")
        stream.held[event.sequence] = event
        if len(stream.held) > MOST_HELD:
            stream.held.clear()
        self._drain(event.worker, stream)
        self._tidy()
        return bool(stream.held) and self._begin_snapshot(stream, "gap")

    def reconcile(self, worker: WorkerId, epoch: Epoch, count: BlockCount) -> bool:
        """Compare with a heartbeat's (sequence, blocks, digest); True: a snapshot is needed. A
        beat may overtake the events it counts, so those are missed only at the beat after."""
        stream = self._streams.get(worker)
        if stream is None or stream.epoch != epoch:
            return False
        stream.beat()
        announced, stream.announced = stream.announced, count.sequence
        if stream.sequence == 0 and count.sequence > 0 and count.blocks > 0:
            return self._begin_snapshot(stream, "new")
        if announced > stream.sequence:
            return self._begin_snapshot(stream, "behind")
        if count.sequence != stream.sequence:
            return False
        if count.blocks == stream.count and count.digest == f"{stream.digest:032x}":
            stream.agreed()
            return False
        return stream.may_doubt() and self._begin_snapshot(stream, "digest")

    def take_part(self, part: BlockSnapshot) -> tuple[int, int] | None:
        """Add a snapshot part. The next part to ask for, and of which snapshot; None when done."""
        stream = self._streams.get(part.worker)
        if stream is None or stream.epoch != part.epoch or stream.snapshot is None:
            self.refused += 1
            return None
        snapshot = stream.snapshot
        if part.chunk != snapshot.next_chunk or (
            part.chunk > 0 and part.sequence != snapshot.sequence
        ):
            stream.snapshot = None
            return (0, 0) if stream.begin_snapshot() else None
        names = [name for block in part.blocks if (name := key(block)) is not None]
        snapshot.blocks.setdefault(part.tier, set()).update(names)
        if part.chunks > MOST_PARTS or snapshot.count > MOST_SNAPSHOT_BLOCKS:
            self.odd["endless_snapshot"] += 1
            stream.snapshot = None
            return None
        snapshot.sequence = part.sequence
        snapshot.next_chunk += 1
        self._store(part.worker, stream, part.tier, names)
        self._tidy()
        if snapshot.next_chunk < part.chunks:
            return snapshot.next_chunk, snapshot.sequence
        self._adopt(part.worker, stream, snapshot)
        return None

    def abandon_snapshot(self, worker: WorkerId, epoch: Epoch) -> None:
        """The worker did not answer: let a later heartbeat try again."""
        stream = self._streams.get(worker)
        if stream is not None and stream.epoch == epoch:
            stream.snapshot = None

    # -- inside --------------------------------------------------------------------------

    def _begin_snapshot(self, stream: Stream, cause: str) -> bool:
        if not stream.begin_snapshot():
            return False
        self.resyncs[cause] += 1
        return True

    def _drain(self, worker: WorkerId, stream: Stream) -> None:
        while (event := stream.held.pop(stream.sequence + 1, None)) is not None:
            stream.sequence = event.sequence
            self._change(worker, stream, event)
            if stream.snapshot is not None:
                stream.snapshot.since.append(event)
                if len(stream.snapshot.since) > MOST_HELD:
                    stream.snapshot = None

    def _change(self, worker: WorkerId, stream: Stream, event: BlockEvent) -> None:
        match event:
            case BlocksStored() | BlocksRemoved():
                names = [name for block in event.blocks if (name := key(block)) is not None]
                self.odd["no_name"] += len(event.blocks) - len(names)
                if event.tier not in TIERS:
                    self.odd["unknown_tier"] += 1
                elif isinstance(event, BlocksStored):
                    self._store(worker, stream, event.tier, names)
                    self.ghosts.stored(stream.holdings[event.tier].slot, names)
                else:
                    self._remove(worker, stream, event.tier, names)
                    self.ghosts.evicted(stream.holdings[event.tier].slot, names)
            case BlocksCleared():
                for tier, holding in stream.holdings.items():
                    self._remove(worker, stream, tier, list(holding.blocks))
                stream.count = stream.digest = stream.unlisted = 0
                stream.guessed = False

    def _adopt(self, worker: WorkerId, stream: Stream, snapshot: Snapshot) -> None:
        """The snapshot is whole: drop what it lacks, then apply what happened after it."""
        for tier in TIERS:
            wanted = snapshot.blocks.get(tier, set())
            holding = stream.holdings.get(tier)
            if holding is not None:
                self._remove(worker, stream, tier, list(holding.blocks - wanted))
        listed = sum(len(holding.blocks) for holding in stream.holdings.values())
        every = [block for blocks in snapshot.blocks.values() for block in blocks]
        stream.count, stream.unlisted = len(every), len(every) - listed
        stream.digest = sum(number(block) for block in every) % DIGEST_MODULUS
        stream.snapshot, stream.guessed = None, False
        for event in snapshot.since:
            if event.sequence > snapshot.sequence:
                self._change(worker, stream, event)
        stream.sequence = max(stream.sequence, snapshot.sequence)
        stream.held = {n: event for n, event in stream.held.items() if n > stream.sequence}
        self._drain(worker, stream)
        self._tidy()

    def _holding(self, worker: WorkerId, stream: Stream, tier: str) -> Holding:
        known = stream.holdings.get(tier)
        if known is None:
            known = stream.holdings[tier] = self.slots.take(worker, tier)
        return known

    def _store(self, worker: WorkerId, stream: Stream, tier: str, names: list[bytes]) -> None:
        holding = self._holding(worker, stream, tier)
        room = stream.most_blocks - stream.listed
        for block in names:
            if block in holding.blocks:
                self.odd["stored_twice"] += stream.snapshot is None
                continue
            stream.count += 1
            stream.digest = (stream.digest + number(block)) % DIGEST_MODULUS
            if room > 0:
                room -= 1
                holding.blocks.add(block)
                self._table.add(block, holding.bit)
            else:
                stream.unlisted += 1
                self.odd["beyond_its_pages"] += 1

    def _remove(self, worker: WorkerId, stream: Stream, tier: str, names: Iterable[bytes]) -> None:
        holding = self._holding(worker, stream, tier)
        for block in names:
            if block in holding.blocks:
                holding.blocks.remove(block)
                self._table.remove(block, holding.bit)
            elif stream.unlisted:
                stream.unlisted -= 1
                stream.guessed = True
            else:
                self.odd["removed_unknown"] += 1
                continue
            stream.count -= 1
            stream.digest = (stream.digest - number(block)) % DIGEST_MODULUS

    def _tidy(self) -> None:
        """A bounded piece of the work that need not be done at once."""
        self.slots.sweep(self._table, _SWEPT_AT_ONCE)
        if self._touched:
            hashes, depth = self._touched.popleft()
            names = (key(block) for block in hashes[:depth])
            self._table.touch(name for name in names if name is not None)
        for block, slots in self._table.overflow():
            self._unlist(block, slots)

    def _unlist(self, block: bytes, slots: int) -> None:
        """The table has forgotten it; its holders have not."""
        for worker, tier in self.slots.owners(slots):
            stream = self._streams[worker]
            stream.holdings[tier].blocks.discard(block)
            stream.unlisted += 1
        self.slots.dropped(block, slots)

    def check(self) -> None:
        """Re-derive holders and digests from the streams. Raises AssertionError."""
        derived: dict[bytes, int] = {}
        holdings = [h for stream in self._streams.values() for h in stream.holdings.values()]
        for holding in (*holdings, *self.slots.leaving()):
            for block in holding.blocks:
                derived[block] = derived.get(block, 0) | holding.bit
        for worker, stream in self._streams.items():
            listed = [block for h in stream.holdings.values() for block in h.blocks]
            if len(listed) != stream.listed:
                raise AssertionError(f"{worker} lists {len(listed)} blocks, not {stream.listed}")
            total = sum(number(block) for block in listed) % DIGEST_MODULUS
            if total != stream.digest and not (stream.unlisted or stream.guessed):
                raise AssertionError(f"digest of {worker} drifted")
        if derived != dict(self._table.items()):
            raise AssertionError("holders differ from the workers' blocks")
