"""Which workers hold which blocks: an index built from numbered block events.

Lost, late or repeated events cost cache hits, never correctness. A gap in the numbers or a
digest that disagrees with a heartbeat makes the worker's part be rebuilt from a snapshot, part by
part, while lookups go on (algorithms: exact block-event index with resync).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shared.ids import BlockHash, Epoch, WorkerId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.workers import BlockCount

BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared

_DIGEST_MODULUS = 1 << 128
_MAX_HELD_EVENTS = 1024
_PREDICTION_TTL_S = 5.0
_MAX_PREDICTIONS = 65_536


@dataclass(slots=True)
class _Snapshot:
    """A snapshot of which parts are still missing."""

    sequence: int = 0
    """The event number it is true for, once its first part came."""
    next_chunk: int = 0
    blocks: set[BlockHash] = field(default_factory=set)
    since: list[BlockEvent] = field(default_factory=list)
    """Events applied while it was under way: those after `sequence` are applied again."""


@dataclass(slots=True)
class _Stream:
    """One worker's event stream as far as it was applied."""

    epoch: Epoch
    sequence: int = 0
    blocks: set[BlockHash] = field(default_factory=set)
    digest: int = 0
    held: dict[int, BlockEvent] = field(default_factory=dict)
    """Events that arrived ahead of a gap, by number."""
    snapshot: _Snapshot | None = None
    announced: int = 0
    """Highest event number that a heartbeat named."""


class PrefixIndex:
    """Block hash -> workers that hold it, plus short-lived predictions of what will be held."""

    def __init__(self) -> None:
        self._streams: dict[WorkerId, _Stream] = {}
        self._holders: dict[BlockHash, set[WorkerId]] = {}
        self._predicted: dict[tuple[WorkerId, BlockHash], float] = {}
        self.resyncs: Counter[str] = Counter()
        """Snapshots begun, by cause: 'new' worker, 'gap', 'behind', 'digest'."""
        self.refused = 0

    @property
    def blocks(self) -> int:
        """Distinct block names with at least one holder."""
        return len(self._holders)

    def depths(self, hashes: Sequence[BlockHash], now: float) -> dict[WorkerId, int]:
        """Per worker the number of leading blocks it holds or was just given to compute."""
        depths: dict[WorkerId, int] = {}
        alive: set[WorkerId] | None = None
        for depth, block in enumerate(hashes, start=1):
            holders = self._holders.get(block, set()) | self._predictions(block, now, alive)
            alive = set(holders) if alive is None else alive & holders
            if not alive:
                break
            for worker in alive:
                depths[worker] = depth
        return depths

    def predict(self, worker: WorkerId, hashes: Iterable[BlockHash], now: float) -> None:
        """Remember a placement for a few seconds, so that siblings of a burst meet."""
        expires = now + _PREDICTION_TTL_S
        for block in hashes:
            self._predicted[worker, block] = expires
        while len(self._predicted) > _MAX_PREDICTIONS:
            del self._predicted[next(iter(self._predicted))]

    def expire(self, now: float) -> None:
        """Drop old predictions. Insertion order is expiry order but for renewals."""
        stale = [key for key, expires in self._predicted.items() if expires <= now]
        for key in stale:
            del self._predicted[key]

    # -- events ------------------------------------------------------------------------

    def follow(self, worker: WorkerId, epoch: Epoch) -> None:
        """Start (or restart) a worker's stream at this epoch, empty."""
        known = self._streams.get(worker)
        if known is None or known.epoch < epoch:
            self.forget(worker)
            self._streams[worker] = _Stream(epoch)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone: none of its blocks can be found any more."""
        stream = self._streams.pop(worker, None)
        if stream is not None:
            self._detach(worker, stream)
        for key in [key for key in self._predicted if key[0] == worker]:
            del self._predicted[key]

    def apply(self, event: BlockEvent) -> bool:
        """Take in an event; True when a snapshot is needed now."""
        stream = self._streams.get(event.worker)
        if stream is None or event.epoch != stream.epoch:
            self.refused += 1
            return False
        if event.sequence <= stream.sequence:
            return False
        stream.held[event.sequence] = event
        if len(stream.held) > _MAX_HELD_EVENTS:
            stream.held.clear()
        self._drain(event.worker, stream)
        return bool(stream.held) and self._begin_snapshot(stream, "gap")

    def reconcile(self, worker: WorkerId, epoch: Epoch, count: BlockCount) -> bool:
        """Compare with a heartbeat's (sequence, blocks, digest); True: a snapshot is needed. A
        beat may overtake the events it counts, so those are missed only at the beat after."""
        stream = self._streams.get(worker)
        if stream is None or stream.epoch != epoch:
            return False
        announced, stream.announced = stream.announced, count.sequence
        if stream.sequence == 0 and count.sequence > 0 and count.blocks > 0:
            return self._begin_snapshot(stream, "new")
        if announced > stream.sequence:
            return self._begin_snapshot(stream, "behind")
        differs = count.sequence == stream.sequence and (
            count.blocks != len(stream.blocks) or count.digest != f"{stream.digest:032x}"
        )
        return differs and self._begin_snapshot(stream, "digest")

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
            stream.snapshot = _Snapshot()
            return 0, 0
        snapshot.sequence = part.sequence
        snapshot.next_chunk += 1
        snapshot.blocks.update(part.blocks)
        for block in part.blocks:
            self._add(part.worker, stream, block)
        if snapshot.next_chunk < part.chunks:
            return snapshot.next_chunk, snapshot.sequence
        self._adopt(part.worker, stream, snapshot)
        return None

    def abandon_snapshot(self, worker: WorkerId, epoch: Epoch) -> None:
        """The worker did not answer: let a later heartbeat try again."""
        stream = self._streams.get(worker)
        if stream is not None and stream.epoch == epoch:
            stream.snapshot = None

    # -- inside ------------------------------------------------------------------------

    def _predictions(
        self, block: BlockHash, now: float, among: set[WorkerId] | None
    ) -> set[WorkerId]:
        workers = self._streams if among is None else among
        return {w for w in workers if self._predicted.get((w, block), 0.0) > now}

    def _begin_snapshot(self, stream: _Stream, cause: str) -> bool:
        if stream.snapshot is not None:
            return False
        stream.snapshot = _Snapshot()
        self.resyncs[cause] += 1
        return True

    def _drain(self, worker: WorkerId, stream: _Stream) -> None:
        while (event := stream.held.pop(stream.sequence + 1, None)) is not None:
            stream.sequence = event.sequence
            self._change(worker, stream, event)
            if stream.snapshot is not None:
                stream.snapshot.since.append(event)
                if len(stream.snapshot.since) > _MAX_HELD_EVENTS:
                    stream.snapshot = None

    def _change(self, worker: WorkerId, stream: _Stream, event: BlockEvent) -> None:
        match event:
            case BlocksStored():
                for block in event.blocks:
                    self._add(worker, stream, block)
            case BlocksRemoved():
                for block in event.blocks:
                    self._remove(worker, stream, block)
            case BlocksCleared():
                self._detach(worker, stream)

    def _adopt(self, worker: WorkerId, stream: _Stream, snapshot: _Snapshot) -> None:
        """The snapshot is whole: drop what it lacks, then apply what happened after it."""
        for block in stream.blocks - snapshot.blocks:
            self._remove(worker, stream, block)
        for event in snapshot.since:
            if event.sequence > snapshot.sequence:
                self._change(worker, stream, event)
        stream.snapshot = None
        stream.sequence = max(stream.sequence, snapshot.sequence)
        stream.held = {n: event for n, event in stream.held.items() if n > stream.sequence}
        self._drain(worker, stream)

    def _add(self, worker: WorkerId, stream: _Stream, block: BlockHash) -> None:
        if block not in stream.blocks:
            stream.blocks.add(block)
            stream.digest = (stream.digest + int(block, 16)) % _DIGEST_MODULUS
            self._holders.setdefault(block, set()).add(worker)

    def _remove(self, worker: WorkerId, stream: _Stream, block: BlockHash) -> None:
        if block in stream.blocks:
            stream.blocks.remove(block)
            stream.digest = (stream.digest - int(block, 16)) % _DIGEST_MODULUS
            holders = self._holders[block]
            holders.discard(worker)
            if not holders:
                del self._holders[block]

    def _detach(self, worker: WorkerId, stream: _Stream) -> None:
        for block in list(stream.blocks):
            self._remove(worker, stream, block)

    def check(self) -> None:
        """Re-derive holders and digests from the streams. Raises AssertionError."""
        derived: dict[BlockHash, set[WorkerId]] = {}
        for worker, stream in self._streams.items():
            for block in stream.blocks:
                derived.setdefault(block, set()).add(worker)
            digest = sum(int(block, 16) for block in stream.blocks) % _DIGEST_MODULUS
            if digest != stream.digest:
                raise AssertionError(f"digest of {worker} drifted")
        if derived != self._holders:
            raise AssertionError("holders differ from the workers' blocks")
