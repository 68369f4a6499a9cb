"""How much slower a step is while another worker computes on the same host, or a pool node copies,
learnt from spans.

Chunks of prompts and runs of decode steps each know the shares of their time in which others were
at work. The factors are those with which both fits are off least: 1 on workers with devices of
their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

_MOST: Final = 3.0
_STEP: Final = 0.05
_ROUNDS: Final = 4
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


Factors = tuple[float, float]
"""How many times as long work takes beside another worker that computes; beside a copy."""
Shares = tuple[float, float]
"""Of its time that work had company of each kind."""


def alone(seconds: float, shares: Shares, factors: Factors) -> float:
    """What work would have taken without company."""
    for share, factor in zip(shares, factors, strict=True):
        seconds *= 1 - share + share / factor
    return seconds


def factors(off: Callable[[Factors], float]) -> Factors:
    """Those at which `off` is least, one after the other until nothing changes; 1 where no other is
    clearly better."""
    before, found = (0.0, 0.0), (1.0, 1.0)
    for _ in range(_ROUNDS):
        if found == before:
            break
        before, found = found, _better(off, found)
    return found


def _better(off: Callable[[Factors], float], known: Factors) -> Factors:
    computing = _best(lambda value: off((value, known[1])))
    return computing, _best(lambda value: off((computing, value)))


def _best(off: Callable[[float], float]) -> float:
    tried = [1.0 + step * _STEP for step in range(round((_MOST - 1) / _STEP) + 1)]
    found = {value: off(value) for value in tried}
    best = min(tried, key=found.__getitem__)
    return best if found[best] < found[1.0] * _GAIN else 1.0
