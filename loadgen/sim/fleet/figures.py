"""Rows to figures: TTFT, TPOT, attainment, goodput. Formulas as in `loadgen run` (algorithms, 1).

Good = finished, TTFT and TPOT both within their SLO; refused and failed requests are missed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadgen.ranks import nearest_rank
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.fleet import Spent

WARM_SHARE: Final = 0.1
"""Of the rows, in order of sending, that no figure counts."""
_SLO: Final = re.compile(r"(ttft|tpot):(\d+(?:\.\d+)?)(ms|s)?")


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objectives in seconds."""

    ttft_s: float
    tpot_s: float
    joint: bool = True
    """A share of requests must meet both; False: that share meets each, not need be the same ones
    (P90 against P90, as DistServe's figures have it)."""

    def met(self, row: Row) -> bool:
        return row.ok and row.ttft_s <= self.ttft_s and row.tpot_s <= self.tpot_s

    def missed(self, row: Row) -> tuple[bool, bool]:
        """What counts against the share; twice the same where both must be met together."""
        if self.joint:
            missed = not self.met(row)
            return missed, missed
        return (
            not row.ok or row.ttft_s > self.ttft_s,
            not row.ok or row.tpot_s > self.tpot_s,
        )


def parse_slo(text: str) -> Slo:
    """`ttft:500,tpot:50` in milliseconds; `ttft:0.5s` in seconds. Raises ValueError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _SLO.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"SLO {part!r}; expected ttft:MS,tpot:MS")
        name, number, unit = match.groups()
        found[name] = float(number) * (1.0 if unit == "s" else 0.001)
    if set(found) != {"ttft", "tpot"} or min(found.values()) <= 0:
        raise ValueError(f"SLO {text!r}; expected ttft:MS,tpot:MS, both above 0")
    return Slo(found["ttft"], found["tpot"])


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Times in seconds."""

    requests: int
    failed: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p90_s: float
    tpot_p99_s: float
    latency_mean_s: float
    latency_p99_s: float
    hit: float
    """Share of prompt tokens that were not computed."""
    attainment: float
    goodput_per_s: float
    """Good requests a second at this rate."""
    max_over_mean: float
    """Prompt tokens computed or reused: the busiest computing worker to the mean."""
    moved_bytes: int


def summarise(rows: Sequence[Row], spent: Spent, slo: Slo) -> Figures:
    """The first tenth by time of sending is left out, so that caches and queues have filled."""
    ordered = sorted(rows, key=lambda row: row.sent_s)
    steady = ordered[int(len(ordered) * WARM_SHARE) :]
    ok = [row for row in steady if row.ok]
    good = sum(slo.met(row) for row in steady)
    ttft = sorted(row.ttft_s for row in ok)
    tpot = sorted(row.tpot_s for row in ok if row.output_tokens > 1)
    latency = sorted(row.latency_s for row in ok)
    begun_s = steady[0].sent_s if steady else 0.0
    span_s = max((row.last_s for row in ok), default=begun_s) - begun_s
    prompt = sum(row.prompt_tokens for row in ok)
    return Figures(
        requests=len(steady),
        failed=len(steady) - len(ok),
        ttft_mean_s=mean(ttft),
        ttft_p50_s=percentile(ttft, 50),
        ttft_p90_s=percentile(ttft, 90),
        ttft_p99_s=percentile(ttft, 99),
        tpot_mean_s=mean(tpot),
        tpot_p90_s=percentile(tpot, 90),
        tpot_p99_s=percentile(tpot, 99),
        latency_mean_s=mean(latency),
        latency_p99_s=percentile(latency, 99),
        hit=sum(row.cached_tokens for row in ok) / prompt if prompt else 0.0,
        attainment=good / len(steady) if steady else 0.0,
        goodput_per_s=good / span_s if span_s > 0 else 0.0,
        max_over_mean=_imbalance(spent),
        moved_bytes=spent.moved.size_bytes,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank of a sorted list; 0 for an empty one."""
    return nearest_rank(ordered, percent / 100) if ordered else 0.0


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _imbalance(spent: Spent) -> float:
    """Busy time of the busiest worker of the role that computes prompts, to the mean."""
    prefills = {name: s for name, s in spent.busy_s.items() if name.startswith("prefill")}
    busy = list((prefills or spent.busy_s).values())
    return max(busy) / mean(busy) if sum(busy) > 0 else 0.0
