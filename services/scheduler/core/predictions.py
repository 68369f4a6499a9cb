"""What placed requests will soon have put into a cache, for a few seconds.

So the siblings of one burst meet on one worker before its first event arrives. Kept apart from
the facts: a prediction never looks like one. A chain is remembered at a few depths only, so that
remembering 2,000 blocks takes no longer than 60.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import Final

from services.scheduler.core.lookup import bits
from shared.ids import BlockHash

TTL_S: Final = 5.0
_EVERY: Final = 16
_GROWTH: Final = 1.125
_MOST_MARKS: Final = 262_144
_DROPPED_AT_ONCE: Final = 2


@functools.lru_cache(maxsize=4096)
def marks(length: int) -> tuple[int, ...]:
    """Depths at which a chain of `length` blocks is remembered: each of the first 16, then
    ever larger steps (a depth is underestimated by an eighth at most), and the last."""
    found = list(range(1, min(length, _EVERY) + 1))
    while found and found[-1] < length:
        found.append(min(length, max(found[-1] + 1, int(found[-1] * _GROWTH))))
    return tuple(found)


class Predictions:
    """(mark, slot) -> when it expires. At most 262,144 of them; the oldest go first."""

    def __init__(self, ttl_s: float = TTL_S, most: int = _MOST_MARKS) -> None:
        self._ttl_s = ttl_s
        self._most = most
        self._marks: dict[BlockHash, dict[int, float]] = {}
        self._masks: dict[BlockHash, int] = {}
        """The slots of each mark as one integer: thirty holders cost no more than one."""
        self._queue: deque[tuple[float, int, tuple[BlockHash, ...]]] = deque()
        self._count = 0
        self._queued = 0

    def __len__(self) -> int:
        return self._count

    def add(self, slot: int, hashes: Sequence[BlockHash], now: float) -> None:
        """The slot was given this chain to compute."""
        if not hashes:
            return
        expires = now + self._ttl_s
        named = tuple([hashes[depth - 1] for depth in marks(len(hashes))])
        known, masks, bit = self._marks, self._masks, 1 << slot
        for block in named:
            slots = known.get(block)
            if slots is None:
                known[block], masks[block] = {slot: expires}, bit
                self._count += 1
                continue
            if slot not in slots:
                self._count += 1
                masks[block] |= bit
            slots[slot] = expires
        self._queue.append((expires, slot, named))
        self._queued += len(named)
        self._drop_some(now)
        while self._queued > self._most:
            self._drop_oldest()

    def depths(self, hashes: Sequence[BlockHash], now: float) -> dict[int, int]:
        """Slot -> leading blocks of this chain that it was given lately."""
        found: dict[int, int] = {}
        self._drop_some(now)
        alive, before = -1, 0
        for depth in marks(len(hashes)) if self._masks else ():
            here = self._masks.get(hashes[depth - 1], 0) & alive
            if before and here != alive:
                found.update(dict.fromkeys(bits(alive & ~here), before))
            alive, before = here, depth
            if not here:
                break
        if alive > 0:
            found.update(dict.fromkeys(bits(alive), before))
        if self._queue and self._queue[0][0] <= now:
            found = {slot: self._current(hashes, slot, depth, now) for slot, depth in found.items()}
            found = {slot: depth for slot, depth in found.items() if depth}
        return found

    def expire(self, now: float) -> None:
        """Forget what has expired."""
        while self._queue and self._queue[0][0] <= now:
            self._drop_oldest()

    def forget(self, slot: int) -> None:
        """The holder is gone."""
        for block in [block for block, slots in self._marks.items() if slot in slots]:
            self._discard(block, slot)
        self._queue = deque(entry for entry in self._queue if entry[1] != slot)
        self._queued = sum(len(entry[2]) for entry in self._queue)

    def _current(self, hashes: Sequence[BlockHash], slot: int, depth: int, now: float) -> int:
        """The same depth less what has expired and is not swept yet."""
        for mark in reversed(marks(len(hashes))):
            if mark <= depth and self._marks[hashes[mark - 1]].get(slot, now) > now:
                return mark
        return 0

    def _drop_some(self, now: float) -> None:
        """Of what has expired, more than one decision adds: then hardly ever is anything left
        that looks alive and is not."""
        for _ in range(_DROPPED_AT_ONCE):
            if not self._queue or self._queue[0][0] > now:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        expires, slot, named = self._queue.popleft()
        self._queued -= len(named)
        for block in named:
            slots = self._marks.get(block)
            if slots is not None and slots.get(slot) == expires:
                self._discard(block, slot)

    def _discard(self, block: BlockHash, slot: int) -> None:
        slots = self._marks[block]
        if slots.pop(slot, None) is not None:
            self._count -= 1
            self._masks[block] &= ~(1 << slot)
        if not slots:
            del self._marks[block], self._masks[block]
