"""Where time comes from: the one seam that tests and the simulator replace.

Cores never see a clock; shells pass `now` in.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for durations, and the wall-clock anchor for traces."""

    def now(self) -> float:
        """Monotonic seconds. Only differences mean anything."""
        ...

    def unix_ns(self, monotonic_s: float) -> int:
        """The wall-clock nanosecond that belongs to a monotonic instant (spans only)."""
        ...


class SystemClock:
    """The machine's monotonic clock, anchored once to the wall clock."""

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> float:
        return time.monotonic()

    def unix_ns(self, monotonic_s: float) -> int:
        return self._anchor_ns + int(monotonic_s * 1e9)


class ManualClock:
    """A clock that a test moves by hand."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def unix_ns(self, monotonic_s: float) -> int:
        return int(monotonic_s * 1e9)

    def advance(self, seconds: float) -> float:
        """Move forward and return the new instant."""
        self._now_s += seconds
        return self._now_s
