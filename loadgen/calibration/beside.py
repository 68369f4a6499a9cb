"""How much slower a step is while another worker computes on the same host, learnt from spans.

Chunks of prompts and runs of decode steps each know the share of their time in which the other kind
was at work. The factor is the one with which both fits are off least: 1 on workers with devices of
their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

_MOST: Final = 3.0
_STEP: Final = 0.05
_GAIN: Final = 0.98
"""A factor above 1 has to explain at least so much more."""


@dataclass(frozen=True, slots=True)
class Busy:
    """When a kind of work was under way: spans in order, none overlapping another."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> Busy:
        """(begin, end) in nanoseconds, in any order."""
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(spans):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        return cls(tuple(merged))

    def share(self, begin: int, end: int) -> float:
        """Of this time."""
        if end <= begin:
            return 0.0
        place = max(0, bisect_right(self.spans, (begin, begin)) - 1)
        covered = 0
        for first, last in self.spans[place:]:
            if first >= end:
                break
            covered += max(0, min(last, end) - max(first, begin))
        return covered / (end - begin)


def alone(seconds: float, share: float, factor: float) -> float:
    """What work would have taken that had company for a share of its time."""
    return seconds * (1 - share + share / factor)


def factor(off: Callable[[float], float]) -> float:
    """The one at which `off` is least; 1 where no other is clearly better."""
    tried = [1.0 + step * _STEP for step in range(round((_MOST - 1) / _STEP) + 1)]
    found = {value: off(value) for value in tried}
    best = min(tried, key=found.__getitem__)
    return best if found[best] < found[1.0] * _GAIN else 1.0
