"""Many positive values in little memory: counts in buckets 0.2 % wide. Quantiles are within 0.1 %,
mean and count exact. For values that are too many to keep: gaps between tokens, lags of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

_LEAST: Final = 1e-7
_GROWTH: Final = math.log(1.002)


class Histogram:
    """Seconds, or anything positive. Values up to 1e-7 share the first bucket."""

    __slots__ = ("_counts", "count", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0

    def add(self, value: float, weight: int = 1) -> None:
        """`weight` equal values."""
        place = int(math.log(value / _LEAST) / _GROWTH) + 1 if value > _LEAST else 0
        self._counts[place] = self._counts.get(place, 0) + weight
        self.count += weight
        self.total += value * weight

    def merge(self, counts: Iterable[tuple[int, int]], total: float) -> None:
        """What another one told by `counts` and its total."""
        for place, weight in counts:
            self._counts[place] = self._counts.get(place, 0) + weight
            self.count += weight
        self.total += total

    def counts(self) -> tuple[tuple[int, int], ...]:
        """(bucket, count) in order."""
        return tuple(sorted(self._counts.items()))

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The middle of the bucket of the nearest rank; None when nothing was added."""
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for place, weight in self.counts():
            seen += weight
            if seen >= rank:
                return _middle(place)
        return None

    def curve(self, points: int) -> list[tuple[float, float]]:
        """(value, share of values up to it) at evenly spaced shares."""
        shares = (number / points for number in range(1, points + 1))
        found = ((self.quantile(share), share) for share in shares)
        return [(value, share) for value, share in found if value is not None]


def from_told(told: Mapping[str, object]) -> Histogram:
    """What `as_told` wrote. Raises ValueError."""
    made = Histogram()
    counts, total = told.get("counts"), told.get("total")
    if not isinstance(counts, list) or not isinstance(total, int | float):
        raise ValueError("a histogram needs counts and a total")
    pairs = [(int(place), int(weight)) for place, weight in counts]
    made.merge(pairs, float(total))
    return made


def as_told(histogram: Histogram) -> dict[str, object]:
    """Plain values, for a file."""
    return {"counts": [list(pair) for pair in histogram.counts()], "total": histogram.total}


def _middle(place: int) -> float:
    return _LEAST * math.exp((place - 0.5) * _GROWTH) if place else _LEAST
