"""One run's rows to everything that run.json says about them; also used to judge a run again, with
other objectives or another window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.load.histogram import Histogram, as_told
from loadgen.reports import figures, verdicts
from loadgen.reports.run_files import Rows
from loadgen.reports.slo import Slos


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What rows alone do not say."""

    slos: Slos = field(default_factory=Slos)
    gpus: int = 0
    """That serve; 0: not known."""
    percentiles: tuple[float, ...] = figures.PERCENTILES
    steady: tuple[float, float] = (0.0, 1.0)
    """Shares of the time of sending."""
    closed: bool = False
    sweep: bool = False
    """Rates one after the other: each is judged by itself."""
    capped: int = 0
    """Requests that a cap held back."""
    scheduled: int = 0
    ideal_hit: float | None = None
    gaps: Histogram | None = None
    clients: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def summarise(rows: Rows, facts: Facts) -> dict[str, Any]:
    """`rows`: all of the run, warming up among them."""
    measured = rows.measured()
    window = steady_window(measured, facts.steady)
    inside = measured.between(*window) if len(measured) else measured
    window_s = figures.window_of(inside)
    if facts.steady != (0.0, 1.0):
        window_s = window[1] - window[0]
    verdict = verdicts.client_verdict(
        measured, facts.scheduled, [dict(client) for client in facts.clients]
    )
    latencies = figures.latencies(inside, facts.percentiles)
    if facts.gaps is not None:
        latencies["itl_ms"] = figures.spread_of_histogram(facts.gaps, facts.percentiles)
    saturation = verdicts.saturation(inside)
    if facts.sweep:
        saturation = {"saturated": False, "slope_per_s": None}
    return {
        "client": {
            "limited": verdict.limited,
            "reasons": list(verdict.reasons),
            "lag_ms": verdict.lag_ms,
            "processes": [dict(client) for client in facts.clients],
        },
        "server": {**saturation},
        "windows": {
            "steady": [round(edge, 6) for edge in window],
            "seconds": round(window_s, 6),
            "warmup_requests": len(rows) - len(measured),
        },
        "counts": figures.counts(inside),
        "metrics": {**latencies, **figures.throughput(inside, window_s)},
        "goodput": figures.goodput(inside, facts.slos, window_s, facts.gpus),
        "tenants": figures.by_tenant(inside, facts.slos, window_s),
        "reuse": figures.reuse(inside, facts.ideal_hit),
        "gaps": as_told(facts.gaps) if facts.gaps is not None else None,
        "warnings": _warnings(inside, facts, saturation),
    }


def steady_window(rows: Rows, shares: tuple[float, float]) -> tuple[float, float]:
    """Seconds of the run."""
    if not len(rows):
        return 0.0, 0.0
    first = float(rows.numbers["intended_s"].min())
    last = float(rows.numbers["intended_s"].max())
    return first + shares[0] * (last - first), first + shares[1] * (last - first)


def _warnings(rows: Rows, facts: Facts, saturation: Mapping[str, Any]) -> list[str]:
    found = []
    if facts.closed:
        found.append(
            "closed loop: users wait for their answers, so a slow server is asked less often"
        )
    if facts.sweep:
        found.append("a sweep: the figures of all rates are mixed here; its steps have their own")
    if facts.capped:
        found.append(
            f"capped: {facts.capped} requests waited for the cap on requests at a time; the real "
            "rate is lower than asked"
        )
    if saturation["saturated"]:
        found.append(
            "server saturated: requests under way grew to the end; latencies depend on how long "
            "the run lasted"
        )
    answered = rows.where(rows.ok)
    reused = figures.reuse(rows, facts.ideal_hit)
    if (reused["gap"] or 0.0) < -0.005:
        found.append(
            "more was cached than this run can have put there: the server still holds prompts of "
            "an earlier one (take another --seed)"
        )
    by_chunks = int((answered.words["counted"] == "chunks").sum())
    if by_chunks:
        found.append(
            f"{by_chunks} answers came without usage: their tokens are taken to be their chunks"
        )
    if 0 < len(answered) < 20:
        found.append(f"only {len(answered)} answers: hardly a percentile means anything")
    return found
