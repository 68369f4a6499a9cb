"""How long answers become: a table of finished lengths that forgets slowly.

Buckets grow by a quarter octave, so one table serves 1 to 65,536 tokens. Kept by namespace and
for all together; a namespace with few samples uses the common table. Bounded in both.
"""

from __future__ import annotations

from collections import OrderedDict
from math import log2
from typing import Final

_BUCKETS: Final = 64
_PER_OCTAVE: Final = 4
_DECAY: Final = 0.999
ENOUGH: Final = 200
"""Samples before a namespace's own table is believed."""
SOME: Final = 16
"""Samples before the common table is."""
PRIOR: Final = 512
"""How long an answer is taken to become before that."""
_FURTHER: Final = 10
"""An answer longer than all before is taken to go on for a tenth of its length."""
_NAMESPACES: Final = 256


class SurvivalTable:
    """Finished lengths, each newer one worth a little more than all before."""

    def __init__(self) -> None:
        self.samples = 0
        self._weights = [0.0] * _BUCKETS

    def add(self, length: int) -> None:
        self.samples += 1
        self._weights = [weight * _DECAY for weight in self._weights]
        self._weights[_bucket(length)] += 1.0

    def left(self, out: int, quantile: float) -> int | None:
        """Tokens that follow after `out` ones, so that this share of the lengths beyond `out`
        is no longer; None where nothing that long was ever seen."""
        beyond = self._beyond(out)
        mass = sum(weight for _, weight in beyond)
        if mass <= 0.0:
            return None
        covered = 0.0
        for length, weight in beyond:
            covered += weight
            if covered >= quantile * mass:
                return max(1, length - out)
        return max(1, beyond[-1][0] - out)

    def _beyond(self, out: int) -> list[tuple[int, float]]:
        """(longest length, weight) of what is longer than `out`, shortest first. Of the bucket
        that `out` falls into, the share above it."""
        first, weights = _bucket(out + 1), self._weights
        found: list[tuple[int, float]] = []
        low, high = _BOUNDS[first]
        share = (high - max(low - 1, out)) / (high - low + 1)
        if weights[first] > 0.0 and share > 0.0:
            found.append((high, weights[first] * min(1.0, share)))
        further = zip(_HIGHEST[first + 1 :], weights[first + 1 :], strict=True)
        return found + [entry for entry in further if entry[1] > 0.0]


class Lengths:
    """The tables of one worker: its model is always the same."""

    def __init__(self) -> None:
        self._all = SurvivalTable()
        self._tables: OrderedDict[str, SurvivalTable] = OrderedDict()

    @property
    def samples(self) -> int:
        return self._all.samples

    def add(self, namespace: str, length: int) -> None:
        self._all.add(length)
        table = self._tables.setdefault(namespace, SurvivalTable())
        self._tables.move_to_end(namespace)
        table.add(length)
        while len(self._tables) > _NAMESPACES:
            self._tables.popitem(last=False)

    def left(self, namespace: str, out: int, quantile: float) -> int:
        """Tokens that follow after `out` ones, by the narrowest table that knows enough."""
        further = max(1, out // _FURTHER)
        own = self._tables.get(namespace)
        for table, least in ((own, ENOUGH), (self._all, SOME)):
            if table is not None and table.samples >= least:
                found = table.left(out, quantile)
                return further if found is None else found
        return max(PRIOR - out, further)


def _bucket(length: int) -> int:
    return min(_BUCKETS - 1, int(log2(max(1, length)) * _PER_OCTAVE))


def _bounds(number: int) -> tuple[int, int]:
    """Shortest and longest length of a bucket (some short ones are empty)."""
    low = -int(-(2 ** (number / _PER_OCTAVE)) // 1)
    high = -int(-(2 ** ((number + 1) / _PER_OCTAVE)) // 1) - 1
    return low, max(low, high)


_BOUNDS: Final = tuple(map(_bounds, range(_BUCKETS)))
_HIGHEST: Final = tuple([high for _, high in _BOUNDS])
