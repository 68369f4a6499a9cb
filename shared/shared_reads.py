"""Reads that share one worker's network card: how long each would have taken alone.

Reads that are under way at once share the card, so each takes longer than its bytes do; together
they show what the card carries. Whoever measures a read alone would believe a busy card to be slow.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_NEWEST: Final = 64
"""Reads that are over; more of them at once make the card look slower, never faster."""


class SharedReads:
    """The reads of one worker. Those still under way are not counted: nobody knows how far they
    have come."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done: deque[tuple[int, float, float]] = deque(maxlen=_NEWEST)

    def alone_s(self, size_bytes: int, seconds: float, now: float) -> float:
        """A read of so many bytes ended now, after so many seconds: how long it would have taken,
        if the card had carried nothing else and as much in all."""
        if seconds <= 0.0 or size_bytes <= 0:
            return max(0.0, seconds)
        began_s = now - seconds
        carried = float(size_bytes)
        for other_bytes, other_began_s, other_ended_s in self._done:
            shared_s = other_ended_s - max(began_s, other_began_s)
            if shared_s > 0.0:
                carried += other_bytes * shared_s / (other_ended_s - other_began_s)
        self._done.append((size_bytes, began_s, now))
        return seconds * size_bytes / carried
