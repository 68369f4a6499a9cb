"""What an answer hinges on beside the link: at which length of answers, and at which burstiness,
the better of two fleets turns into the worse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from loadgen.sim.fleet.goodput import Draw
from loadgen.sim.fleet.plan import Choice, Question
from loadgen.spread import spread
from loadgen.workloads.request import Workload, build

_CLOSE: Final = 1.3
"""A break-even value is known to this factor."""


@dataclass(frozen=True, slots=True)
class Hinge:
    """A quantity of the workload. `usual` is its value in the question itself."""

    name: str
    usual: float
    values: tuple[float, ...]
    """In rising order, without the usual one."""
    draw_at: Callable[[float], Draw]


def answers(draw: Draw) -> Hinge:
    """Answers so many times as long: the ratio of prompt to output."""

    def at(factor: float) -> Draw:
        return lambda rate_per_s: _longer(draw(rate_per_s), factor)

    return Hinge("length of answers, times", 1.0, (0.25, 4.0), at)


def bursts(draw_with: Callable[[str, float], Workload]) -> Hinge:
    """Coefficient of variation of the gaps between arrivals; the question's own are Poisson."""

    def at(cv: float) -> Draw:
        return partial(draw_with, f"gamma:{cv:g}")

    return Hinge("variation of gaps", 1.0, (2.0, 4.0), at)


def turns(question: Question, hinge: Hinge, split: Choice, whole: Choice) -> str:
    """One sentence. Fleets are measured side by side."""

    def totals(values: Sequence[float]) -> dict[float, tuple[float, float]]:
        calls = [
            partial(_total, replace(question, draw=hinge.draw_at(value)), choice)
            for value in values
            for choice in (split, whole)
        ]
        return dict(zip(values, _pairs(list(spread(calls, question.jobs))), strict=True))

    ahead = totals(hinge.values)
    ahead[hinge.usual] = (split.total_per_s, whole.total_per_s)

    def wins(value: float) -> bool:
        own, other = totals((value,))[value]
        return own > other

    return told(hinge.name, split.name, whole.name, ahead, break_even(ahead, wins))


def break_even(
    ahead: dict[float, tuple[float, float]], wins: Callable[[float], bool]
) -> float | None:
    """Where the answer first turns, by bisection between two values; None where it never does."""
    values = sorted(ahead)
    won = {value: ahead[value][0] > ahead[value][1] for value in values}
    for low, high in itertools.pairwise(values):
        if won[low] == won[high]:
            continue
        below = won[low]
        while high / low > _CLOSE:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if wins(middle) == below else (low, middle)
        return math.sqrt(low * high)
    return None


def told(
    name: str,
    split: str,
    whole: str,
    ahead: dict[float, tuple[float, float]],
    turns_at: float | None = None,
) -> str:
    """`ahead`: what both serve at each value."""
    values = sorted(ahead)
    wins = [ahead[value][0] > ahead[value][1] for value in values]
    where = f"{name} ({values[0]:g} to {values[-1]:g})"
    if all(wins):
        return f"It does not hinge on {where}: {split} stays ahead of {whole}."
    if not any(wins):
        return f"It does not hinge on {where}: {split} is nowhere ahead of {whole}."
    best = ", ".join(f"{value:g}" for value, win in zip(values, wins, strict=True) if win)
    text = f"It hinges on {name}: of {_list(values)}, {split} is ahead of {whole} at {best}"
    return f"{text}; it turns at about {turns_at:.2g}." if turns_at else f"{text}."


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _pairs(totals: Sequence[float]) -> list[tuple[float, float]]:
    return [(totals[place], totals[place + 1]) for place in range(0, len(totals), 2)]


def _total(question: Question, choice: Choice) -> float:
    return question.goodput(choice.design).rate_per_s * choice.replicas


def _longer(workload: Workload, factor: float) -> Workload:
    rows = (
        replace(row, output_tokens=max(1, round(row.output_tokens * factor))) for row in workload
    )
    return build(workload.name, workload.block_tokens, rows)
