"""Figures of a run out of its rows. The formulas:

ttft  first chunk with content - intended send     (ttft_sent: - actual send)
e2e   last chunk with content - intended send
tpot  (last - first) / (n - 1), n counted by the server; absent for n < 2
itl   gap before a chunk, counted once for each token in it; the first token has none

Percentiles are exact over the answered rows of the window (nearest rank), and absent with fewer
than ten samples beyond them. Beside each stands the interval that resampling converges to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from loadgen.load.histogram import Histogram
from loadgen.reports.run_files import Numbers, Rows
from loadgen.reports.slo import Slos

LATENCIES: Final = ("ttft", "tpot", "e2e", "ttft_sent")
PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
_BEYOND: Final = 10
_Z: Final = 1.959964
Spread = dict[str, Any]


def percentile_name(percent: float) -> str:
    """p50, p99, p999."""
    return f"p{percent:g}".replace(".", "")


def percentile(ordered: Sequence[float] | Numbers, percent: float) -> float | None:
    """Nearest rank of sorted values; None with fewer than ten samples beyond (above the median)."""
    count = len(ordered)
    rank = max(1, math.ceil(percent / 100 * count))
    if count == 0 or (percent > 50 and count - rank < _BEYOND):
        return None
    return float(ordered[rank - 1])


def spread(values: Numbers, percentiles: Sequence[float] = PERCENTILES) -> Spread:
    """Milliseconds of seconds: mean and percentiles, each with its 95 % interval under `ci`."""
    ordered = np.sort(values) * 1000
    count = len(ordered)
    found: Spread = {"mean": round(float(ordered.mean()), 4) if count else None}
    intervals: dict[str, list[float]] = {}
    if count >= 2:
        margin = _Z * float(ordered.std(ddof=1)) / math.sqrt(count)
        mean = float(ordered.mean())
        intervals["mean"] = [round(mean - margin, 4), round(mean + margin, 4)]
    for percent in percentiles:
        name, value = percentile_name(percent), percentile(ordered, percent)
        found[name] = None if value is None else round(value, 4)
        if value is not None:
            intervals[name] = [round(float(x), 4) for x in _rank_interval(ordered, percent / 100)]
    found["ci"], found["n"] = intervals, count
    return found


def spread_of_histogram(histogram: Histogram, percentiles: Sequence[float] = PERCENTILES) -> Spread:
    """The same of values that were only counted: no intervals, quantiles within 0.1 %."""
    mean = histogram.mean
    found: Spread = {"mean": None if mean is None else round(mean * 1000, 4)}
    for percent in percentiles:
        share = percent / 100
        beyond = histogram.count - math.ceil(share * histogram.count)
        value = histogram.quantile(share)
        shown = value is not None and (percent <= 50 or beyond >= _BEYOND)
        found[percentile_name(percent)] = round((value or 0.0) * 1000, 4) if shown else None
    found["ci"], found["n"] = {}, histogram.count
    return found


def latencies(rows: Rows, percentiles: Sequence[float] = PERCENTILES) -> dict[str, Spread]:
    """`ttft_ms`, `tpot_ms`, … of answered rows."""
    answered = rows.where(rows.ok)
    return {
        f"{name}_ms": spread(_present(answered.numbers[f"{name}_s"]), percentiles)
        for name in LATENCIES
    }


def counts(rows: Rows) -> dict[str, Any]:
    """By outcome, and by reason for whatever was not answered."""
    outcomes = Counter(rows.words["outcome"].tolist())
    bad = rows.where(~rows.ok)
    reasons = Counter(
        f"{outcome}: {reason}" if reason else outcome
        for outcome, reason in zip(
            bad.words["outcome"].tolist(), bad.words["reason"].tolist(), strict=True
        )
    )
    return {
        "outcomes": dict(sorted(outcomes.items())),
        "reasons": dict(reasons.most_common(50)),
    }


def goodput(rows: Rows, slos: Slos, window_s: float, gpus: int = 0) -> dict[str, Any]:
    """Requests that met all their objectives, per second (and GPU), and of all that were intended.
    Own cancels are left out; whatever failed is a miss."""
    judged = rows.where(rows.words["outcome"] != "cancelled")
    met = slos.met(judged)
    good = int(met.sum())
    share = good / len(judged) if len(judged) else None
    rate = good / window_s if window_s > 0 else None
    found: dict[str, Any] = {
        "slo": slos.text,
        "good": good,
        "judged": len(judged),
        "attainment": None if share is None else round(share, 6),
        "attainment_ci": None if share is None else _wilson(good, len(judged)),
        "goodput_rps": None if rate is None else round(rate, 6),
        "gpus": gpus or None,
        "goodput_rps_per_gpu": round(rate / gpus, 6) if rate is not None and gpus else None,
        "missed_by": slos.missed_by(judged),
    }
    return found


def reuse(rows: Rows, ideal: float | None) -> dict[str, Any]:
    """Prompt tokens that were cached, as the server counts them, beside what was possible."""
    answered = rows.where(rows.ok)
    prompt = float(np.nansum(answered.numbers["prompt_tokens"]))
    cached = float(np.nansum(answered.numbers["cached_tokens"]))
    wanted = _present(answered.numbers["wanted_prompt_tokens"])
    real = _present(answered.numbers["prompt_tokens"])
    achieved = cached / prompt if prompt else None
    return {
        "prompt_tokens": int(prompt),
        "cached_tokens": int(cached),
        "achieved": None if achieved is None else round(achieved, 6),
        "ideal": None if ideal is None else round(ideal, 6),
        "gap": None if achieved is None or ideal is None else round(ideal - achieved, 6),
        "mean_prompt_tokens_wanted": round(float(wanted.mean()), 2) if len(wanted) else None,
        "mean_prompt_tokens": round(float(real.mean()), 2) if len(real) else None,
    }


def throughput(rows: Rows, window_s: float) -> dict[str, Any]:
    """Answered requests and tokens per second of the window."""
    answered = rows.where(rows.ok)
    tokens = {
        name: float(np.nansum(answered.numbers[f"{name}_tokens"])) for name in ("prompt", "output")
    }
    per_s = 1 / window_s if window_s > 0 else 0.0
    chunks = float(answered.numbers["chunks"].sum())
    return {
        "requests": len(rows),
        "requests_per_s": round(len(answered) * per_s, 4),
        "prompt_tokens_per_s": round(tokens["prompt"] * per_s, 3),
        "output_tokens_per_s": round(tokens["output"] * per_s, 3),
        "output_tokens": int(tokens["output"]),
        "tokens_per_chunk": round(tokens["output"] / chunks, 4) if chunks else None,
    }


def window_of(rows: Rows) -> float:
    """Seconds from the first intended send to the last token (or send) of these rows; of a run in
    several steps, the sum of theirs."""
    ends = np.fmax(rows.numbers["last_s"], rows.numbers["sent_s"])
    total = 0.0
    for step in np.unique(rows.numbers["step"]):
        there = rows.numbers["step"] == step
        last = ends[there & ~np.isnan(ends)]
        if len(last):
            first = float(rows.numbers["intended_s"][there].min())
            total += max(0.0, float(last.max()) - first)
    return total


def by_tenant(rows: Rows, slos: Slos, window_s: float) -> Mapping[str, Any]:
    """Attainment and median TTFT of each tenant, where there is more than one."""
    names = sorted(set(rows.words["tenant"].tolist()))
    if len(names) < 2:
        return {}
    parts = {name: rows.where(rows.words["tenant"] == name) for name in names[:64]}
    return {
        name: {
            "requests": len(part),
            "ttft_ms": spread(_present(part.where(part.ok).numbers["ttft_s"]), (50.0,)),
            **goodput(part, slos, window_s),
        }
        for name, part in parts.items()
    }


def _present(values: Numbers) -> Numbers:
    found: Numbers = values[~np.isnan(values)]
    return found


def _rank_interval(ordered: Numbers, share: float) -> tuple[float, float]:
    """Resampling a percentile picks a binomially distributed rank: its 95 % interval."""
    count = len(ordered)
    middle, margin = count * share, _Z * math.sqrt(count * share * (1 - share))
    low = max(0, math.floor(middle - margin) - 1)
    high = min(count - 1, math.ceil(middle + margin) - 1)
    return float(ordered[low]), float(ordered[max(low, high)])


def _wilson(good: int, count: int) -> list[float]:
    """95 % interval of a share, sound near 0 and 1."""
    share, square = good / count, _Z * _Z
    centre = (share + square / (2 * count)) / (1 + square / count)
    root = math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    margin = _Z * root / (1 + square / count)
    return [round(max(0.0, centre - margin), 6), round(min(1.0, centre + margin), 6)]
