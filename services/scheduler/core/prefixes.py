"""Which workers hold which blocks: an index built from numbered block events.

Lost, late or repeated events cost cache hits, never correctness. A gap in the numbers or a
digest that disagrees with a heartbeat makes the worker's part be rebuilt from a snapshot; the
old view serves until the new one is whole (algorithms: exact block-event index with resync).
"""

from __future__ import annotations

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
class _Stream:
    """One worker's event stream as far as it was applied."""

    epoch: Epoch
    sequence: int = 0
    blocks: set[BlockHash] = field(default_factory=set)
    digest: int = 0
    held: dict[int, BlockEvent] = field(default_factory=dict)
    """Events that arrived ahead of a gap, by number."""
    parts: list[tuple[BlockHash, ...]] | None = None
    """Snapshot parts received so far; None: no snapshot under way."""
    parts_sequence: int = 0
    announced: int = 0
    """Highest event number that a heartbeat named."""


class PrefixIndex:
    """Block hash -> workers that hold it, plus short-lived predictions of what will be held."""

    def __init__(self) -> None:
        self._streams: dict[WorkerId, _Stream] = {}
        self._holders: dict[BlockHash, set[WorkerId]] = {}
        self._predicted: dict[tuple[WorkerId, BlockHash], float] = {}
        self.resyncs = 0
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
        return bool(stream.held) and stream.parts is None and self._begin_snapshot(stream)

    def reconcile(self, worker: WorkerId, epoch: Epoch, count: BlockCount) -> bool:
        """Compare with a heartbeat's (sequence, blocks, digest); True: a snapshot is needed. A
        beat may overtake the events it counts, so those are missed only at the beat after."""
        stream = self._streams.get(worker)
        if stream is None or stream.epoch != epoch or stream.parts is not None:
            return False
        behind = stream.announced > stream.sequence
        stream.announced = count.sequence
        differs = count.sequence == stream.sequence and (
            count.blocks != len(stream.blocks) or count.digest != f"{stream.digest:032x}"
        )
        return (behind or differs) and self._begin_snapshot(stream)

    def take_part(self, part: BlockSnapshot) -> int | None:
        """Add a snapshot part. The number of the next part to ask for, or None when done."""
        stream = self._streams.get(part.worker)
        if stream is None or stream.epoch != part.epoch or stream.parts is None:
            self.refused += 1
            return None
        if part.chunk != len(stream.parts) or (
            part.chunk > 0 and part.sequence != stream.parts_sequence
        ):
            stream.parts = []
            return 0
        stream.parts_sequence = part.sequence
        stream.parts.append(part.blocks)
        if len(stream.parts) < part.chunks:
            return len(stream.parts)
        self._swap(part.worker, stream)
        return None

    def abandon_snapshot(self, worker: WorkerId, epoch: Epoch) -> None:
        """The worker did not answer: let a later heartbeat try again."""
        stream = self._streams.get(worker)
        if stream is not None and stream.epoch == epoch:
            stream.parts = None

    # -- inside ------------------------------------------------------------------------

    def _predictions(
        self, block: BlockHash, now: float, among: set[WorkerId] | None
    ) -> set[WorkerId]:
        workers = self._streams if among is None else among
        return {w for w in workers if self._predicted.get((w, block), 0.0) > now}

    def _begin_snapshot(self, stream: _Stream) -> bool:
        stream.parts = []
        self.resyncs += 1
        return True

    def _drain(self, worker: WorkerId, stream: _Stream) -> None:
        while (event := stream.held.pop(stream.sequence + 1, None)) is not None:
            stream.sequence = event.sequence
            match event:
                case BlocksStored():
                    for block in event.blocks:
                        self._add(worker, stream, block)
                case BlocksRemoved():
                    for block in event.blocks:
                        self._remove(worker, stream, block)
                case BlocksCleared():
                    self._detach(worker, stream)

    def _swap(self, worker: WorkerId, stream: _Stream) -> None:
        parts, stream.parts = stream.parts or [], None
        self._detach(worker, stream)
        for blocks in parts:
            for block in blocks:
                self._add(worker, stream, block)
        stream.sequence = max(stream.sequence, stream.parts_sequence)
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
