"""Goodput of a fleet: the highest rate at which a share of all requests meets both objectives.

Bisection with common random numbers: one draw of gaps and lengths, scaled to each rate. A run that
can no longer reach the share is stopped (algorithms, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design
from loadgen.sim.fleet.figures import WARM_SHARE, Figures, Slo, summarise
from loadgen.sim.fleet.fleet import Fleet
from loadgen.spread import spread
from loadgen.workloads.request import Workload

CLOSE: Final = 0.04
"""The search ends when the bounds differ by less than this share."""
_LOWEST_SHARE: Final = 1 / 64
"""Of the first rate: who is not good there is not good at rest."""
_GROWTH: Final = 2.0
_EXACTLY: Final = 1e-9
"""Of a request: 18 of 180 are a tenth, whatever floating point says."""

Draw = Callable[[float], Workload]
"""A workload at this rate, of one and the same draw."""


@dataclass(frozen=True, slots=True)
class Point:
    """One rate. `figures` are missing where the run was stopped: it could not be good enough."""

    rate_per_s: float
    attainment: float
    figures: Figures | None
    steady: bool = True
    """False: all requests were under way at once, so the rate was never really offered."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """The highest good rate that was found, and every rate that was tried."""

    rate_per_s: float
    devices: int
    curve: tuple[Point, ...]

    @property
    def per_device(self) -> float:
        return self.rate_per_s / self.devices


class _Hopeless(Exception):
    """So many have missed that the rest cannot make up for it."""


def goodput(
    design: Design,
    draw: Draw,
    slo: Slo,
    share: float = 0.9,
    first_per_s: float = 1.0,
    jobs: int = 1,
    close: float = CLOSE,
) -> Goodput:
    """0 where even the lowest rate is too high. Tries `jobs` rates side by side. Raises
    DesignError."""
    curve: list[Point] = []

    def good(rates: Sequence[float]) -> list[bool]:
        calls = [partial(at, design, draw(rate), slo, share, rate) for rate in rates]
        points = list(spread(calls, jobs))
        curve.extend(points)
        return [point.steady and point.attainment >= share for point in points]

    found = highest(good, first_per_s, jobs, close)
    return Goodput(found, design.devices, tuple(sorted(curve, key=lambda point: point.rate_per_s)))


def binding(design: Design, workload: Workload, slo: Slo) -> str:
    """Which objective a fleet misses that served nothing well enough, with its figure there."""
    rows: list[Row] = []
    figures = summarise(rows, Fleet(design, workload).run(rows.append), slo)
    if figures.ttft_p90_s > slo.ttft_s:
        return f"TTFT binds: P90 is {figures.ttft_p90_s:.3f} s of {slo.ttft_s:g} s"
    if figures.tpot_p90_s > slo.tpot_s:
        return f"TPOT binds: P90 is {figures.tpot_p90_s:.4f} s of {slo.tpot_s:g} s"
    if figures.failed:
        return f"{figures.failed} of {figures.requests} requests failed"
    return "both objectives together: too few requests meet the one that meet the other"


def highest(
    good: Callable[[Sequence[float]], list[bool]],
    first_per_s: float,
    width: int = 1,
    close: float = CLOSE,
) -> float:
    """The highest good rate, closely; 0 where even a small part of `first_per_s` is too much.
    `good` judges `width` rates at once: true below some rate and false above."""
    low, high = 0.0, 0.0
    start = first_per_s
    while not high:
        rates = [start * _GROWTH**step for step in range(width)]
        low, high = _narrowed(low, 0.0, rates, good(rates))
        start = rates[-1] * _GROWTH
    while low == 0.0 and high > first_per_s * _LOWEST_SHARE:
        rates = sorted(high / _GROWTH**step for step in range(1, width + 1))
        low, high = _narrowed(low, high, rates, good(rates))
    while low > 0.0 and (high - low) / high > close:
        rates = [low + (high - low) * step / (width + 1) for step in range(1, width + 1)]
        low, high = _narrowed(low, high, rates, good(rates))
    return low


def _narrowed(
    low: float, high: float, rates: Sequence[float], answers: Sequence[bool]
) -> tuple[float, float]:
    """Up to the first bad one. `high` 0: none was bad so far."""
    for rate, answer in zip(rates, answers, strict=True):
        if not answer:
            return low, rate
        low = rate
    return low, high


def at(design: Design, workload: Workload, slo: Slo, share: float, rate_per_s: float) -> Point:
    """One run; it ends early once the share is out of reach."""
    warm = int(len(workload) * WARM_SHARE)
    counted = len(workload) - warm
    allowed = (1 - share) * counted + _EXACTLY
    rows: list[Row] = []
    late, slow = 0, 0

    def take(row: Row) -> None:
        nonlocal late, slow
        rows.append(row)
        if row.number >= warm:
            one, other = slo.missed(row)
            late, slow = late + one, slow + other
            if max(late, slow) > allowed:
                raise _Hopeless

    try:
        spent = Fleet(design, workload).run(take)
    except _Hopeless:
        return Point(rate_per_s, 1 - max(late, slow) / counted, None)
    figures = summarise(rows, spent, slo)
    times = [request.at_s for request in workload if request.after is None]
    steady = times[-1] - times[0] >= figures.latency_mean_s
    attained = figures.attainment if slo.joint else 1 - max(late, slow) / counted
    return Point(rate_per_s, attained, figures, steady)
