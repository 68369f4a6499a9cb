"""What an answer hinges on beside the link: at which length of answers, and at which burstiness,
the better of two fleets turns into the worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from loadgen.sim.fleet.goodput import Draw
from loadgen.sim.fleet.plan import Choice, Question
from loadgen.spread import spread
from loadgen.workloads.request import Workload, build


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
    calls = [
        partial(_total, replace(question, draw=hinge.draw_at(value)), choice)
        for value in hinge.values
        for choice in (split, whole)
    ]
    totals = list(spread(calls, question.jobs))
    ahead = dict(zip(hinge.values, _pairs(totals), strict=True))
    ahead[hinge.usual] = (split.total_per_s, whole.total_per_s)
    return told(hinge.name, split.name, whole.name, ahead)


def told(name: str, split: str, whole: str, ahead: dict[float, tuple[float, float]]) -> str:
    """`ahead`: what both serve at each value."""
    values = sorted(ahead)
    wins = [ahead[value][0] > ahead[value][1] for value in values]
    where = f"{name} ({values[0]:g} to {values[-1]:g})"
    if all(wins):
        return f"It does not hinge on {where}: {split} stays ahead of {whole}."
    if not any(wins):
        return f"It does not hinge on {where}: {split} is nowhere ahead of {whole}."
    best = ", ".join(f"{value:g}" for value, win in zip(values, wins, strict=True) if win)
    return f"It hinges on {name}: of {_list(values)}, {split} is ahead of {whole} at {best}."


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
