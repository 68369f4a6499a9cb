"""What a worker's requests took compared with what was expected of it.

A worker that reports less work than it has looks attractive; its requests then take longer than
estimated, and its estimates are multiplied until they come true. Knows only ratios.
"""

from __future__ import annotations

import math
from typing import Final

from shared.ids import WorkerId

_WEIGHT: Final = 0.1
_MOST: Final = 8.0
_FLOOR_S: Final = 0.05
"""Both sides of the ratio get it: milliseconds of a tiny request prove nothing."""


class Trust:
    """`factor` of each worker: 1 for one that keeps its word (or is faster), up to 8."""

    def __init__(self) -> None:
        self._logs: dict[WorkerId, float] = {}

    def factor(self, worker: WorkerId) -> float:
        """Multiplies what this worker is estimated to take."""
        log = self._logs.get(worker)
        return math.exp(log) if log is not None and log > 0.0 else 1.0

    def took(self, worker: WorkerId, expected_s: float, seconds: float) -> None:
        """A first token came after `seconds`; `expected_s` was promised, factor included."""
        if not (0.0 < seconds < 3600.0 and 0.0 <= expected_s < 3600.0):
            return
        known = self._logs.get(worker, 0.0)
        error = math.log((seconds + _FLOOR_S) / (expected_s + _FLOOR_S))
        moved = known + _WEIGHT * max(-1.0, min(1.0, error))
        self._logs[worker] = max(-0.5, min(math.log(_MOST), moved))

    def forget(self, worker: WorkerId) -> None:
        """It is gone."""
        self._logs.pop(worker, None)

    def shown(self) -> dict[str, float]:
        """For people: those that take longer than expected."""
        return {w: round(math.exp(log), 3) for w, log in self._logs.items() if log > 0.05}
