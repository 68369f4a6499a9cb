"""Carries a plan out: one load, or the rates of a sweep one after the other.

Knows no file but the folder where client processes put their rows.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from loadgen.load import setup
from loadgen.load.datasets import Chosen
from loadgen.load.flag_values import UsageError
from loadgen.load.histogram import Histogram
from loadgen.load.processes import Drive, Driven
from loadgen.load.progress import Progress
from loadgen.load.setup import Plan
from loadgen.reports import figures, verdicts
from loadgen.reports.run_files import Rows

HOLDS: Final = 0.9
"""Share of requests within the objectives at which a rate of a sweep holds."""


@dataclass(slots=True)
class Conducted:
    """What came of it."""

    files: list[Path] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    gaps: Histogram = field(default_factory=Histogram)
    trouble: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    scheduled: int = 0
    capped: int = 0
    interrupted: bool = False
    ideal_hit: float | None = None
    chosen: Chosen | None = None
    origin_s: float | None = None

    def take(self, driven: Driven, chosen: Chosen, due: int) -> None:
        """One load's part."""
        self.files += driven.files
        self.clients += driven.clients
        self.gaps.merge(driven.gaps.counts(), driven.gaps.total)
        self.trouble += driven.trouble
        self.capped += sum(client.get("capped", 0) for client in driven.clients)
        self.interrupted |= driven.interrupted
        self.scheduled += 0 if driven.interrupted else due
        self.ideal_hit, self.chosen = chosen.ideal_hit, chosen
        self.origin_s = driven.origin_s if self.origin_s is None else self.origin_s


async def one_load(
    plan: Plan, options: argparse.Namespace, model: str, folder: Path, into: Conducted
) -> None:
    """The plan as it is; `into` learns what came of it. Raises UsageError."""
    chosen = setup.load(plan, options)
    warmup = (
        setup.load(plan, options, warmup=True).part if plan.warmups and not into.rates else None
    )
    asking = setup.asking(plan, chosen, options, model)
    roots = [request.at_s for request in chosen.part.workload if request.after is None]
    first_s, end_s = plan.pace.slot
    limit_s = min(plan.pace.duration_s or math.inf, end_s)
    due = sum(first_s <= at_s < limit_s for at_s in roots)
    name = f"{plan.rate_per_s:.3g}/s  " if options.ramp_up_strategy == "steps" else ""
    progress = Progress(due, name, options.quiet)
    pace = plan.pace
    if not pace.closed and roots:
        last_s = min(roots[-1], limit_s)
        begun_s, over_s = (share * last_s for share in plan.steady)
        pace = replace(pace, steady=(begun_s, over_s if plan.steady[1] < 1 else math.inf))
    if into.rates:
        # A later step of a sweep: its window lies where the step lies.
        pace = replace(pace, steady=(0.0, math.inf))
    drive = Drive(chosen.part, warmup, asking, pace, folder, plan.processes, step=len(into.rates))
    driven = await drive.run(progress.tick, into.origin_s)
    progress.close()
    into.take(driven, chosen, 0 if pace.closed else due)
    into.rates.append(plan.rate_per_s)


def judge_step(rows: Rows, rate_per_s: float, plan: Plan) -> dict[str, Any]:
    """One rate of a sweep: what was met, and whether it holds."""
    window_s = figures.window_of(rows)
    good = figures.goodput(rows, plan.slos, window_s)
    saturation = verdicts.saturation(rows)
    late = verdicts.client_verdict(rows, 0, ()).limited
    met = (good["attainment"] or 0.0) >= HOLDS
    if late:
        verdict = "client limited: says nothing"
    elif not met:
        verdict = f"does not hold: under {HOLDS:.0%} met"
    elif saturation["saturated"]:
        verdict = "does not hold: the backlog grows"
    else:
        verdict = "holds"
    spread = figures.latencies(rows, (50.0, 99.0))
    return {
        "rate_rps": rate_per_s,
        "requests": len(rows),
        "goodput_rps": good["goodput_rps"],
        "attainment": good["attainment"],
        "attainment_ci": good["attainment_ci"],
        "ttft_p50_ms": spread["ttft_ms"]["p50"],
        "ttft_p99_ms": spread["ttft_ms"]["p99"],
        "tpot_p50_ms": spread["tpot_ms"]["p50"],
        "saturated": saturation["saturated"],
        "holds": verdict == "holds",
        "verdict": verdict,
    }


def rates(options: argparse.Namespace) -> list[float]:
    """Of a sweep: from the first to the last by equal factors."""
    first, last, steps = options.ramp_start_rps, options.ramp_end_rps, options.ramp_steps
    if not 2 <= steps <= 100:
        raise UsageError("--ramp-steps must be 2..100")
    return [float(first * (last / first) ** (step / (steps - 1))) for step in range(steps)]


def next_rate(steps: Sequence[dict[str, Any]]) -> float | None:
    """Between the highest rate that holds and the lowest above it that does not; None when one of
    them is missing."""
    holding = [step["rate_rps"] for step in steps if step["holds"]]
    failing = [step["rate_rps"] for step in steps if not step["holds"]]
    low = max(holding, default=None)
    high = min((rate for rate in failing if low is not None and rate > low), default=None)
    return math.sqrt(low * high) if low is not None and high is not None else None


def most_goodput(steps: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """The best of the rates that hold."""
    holding = [step for step in steps if step["holds"] and step["goodput_rps"] is not None]
    if not holding:
        return None
    best = max(holding, key=lambda step: float(step["goodput_rps"]))
    return {"rate_rps": best["rate_rps"], "goodput_rps": best["goodput_rps"]}
