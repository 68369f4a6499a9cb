"""Virtual time: one heap of events in a total order, and a clock of its own for each host.

Knows nothing of what an event does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush


class EventHeap:
    """Calls in order of (time, number given at scheduling)."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0
        """How many calls were made so far."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call at an instant; one that has passed means next."""
        self._number += 1
        now_s = self.now_s
        heappush(self._heap, (when_s if when_s > now_s else now_s, self._number, call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._number += 1
        when_s = self.now_s + delay_s if delay_s > 0.0 else self.now_s
        heappush(self._heap, (when_s, self._number, call))

    def next(self) -> None:
        """Make the next call. Raises IndexError when there is none."""
        self.now_s, _, call = heappop(self._heap)
        self.calls += 1
        call()


@dataclass(slots=True)
class HostClock:
    """A host's monotonic clock, which starts anywhere and runs a little fast or slow; and the
    date it believes in, which can jump and which nobody may depend on."""

    offset_s: float
    rate: float = 1.0
    wall_s: float = 0.0

    def now(self, true_s: float) -> float:
        return self.offset_s + true_s * self.rate

    def duration(self, local_s: float) -> float:
        """True seconds that pass while this clock counts `local_s`."""
        return local_s / self.rate
