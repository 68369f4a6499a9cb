"""Figures of a run: exact percentiles over its rows, counts, cache hits, and the honesty checks.

A percentile with fewer than ten samples beyond it is not printed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from loadgen.records import Row

_PERCENTILES: Final = (50, 90, 95, 99)
_MIN_BEYOND: Final = 10


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The exact percentile (nearest rank), or None with too few samples beyond it."""
    if not values:
        return None
    ordered = sorted(values)
    rank = math.ceil(percent / 100 * len(ordered))
    if percent > 50 and len(ordered) - rank < _MIN_BEYOND:
        return None
    return ordered[rank - 1]


def summarise(rows: Sequence[Row]) -> dict[str, object]:
    """Everything the report prints, as plain values. Times in milliseconds."""
    answered = [row for row in rows if row.outcome == "ok"]
    figures: dict[str, object] = {
        "requests": len(rows),
        "outcomes": dict(sorted(Counter(row.outcome for row in rows).items())),
    }
    for name in ("ttft", "tpot", "e2e"):
        values = [v for row in answered if (v := getattr(row, f"{name}_s")) is not None]
        figures[f"{name}_ms"] = _spread([value * 1000 for value in values])
    prompt = sum(row.prompt_tokens or 0 for row in answered)
    cached = sum(row.cached_tokens or 0 for row in answered)
    figures["prompt_tokens"] = prompt
    figures["cached_tokens"] = cached
    figures["cache_hit_share"] = round(cached / prompt, 4) if prompt else None
    figures["output_tokens"] = sum(row.output_tokens or 0 for row in answered)
    ended = max((row.last_s for row in answered if row.last_s is not None), default=None)
    figures["requests_per_s"] = round(len(answered) / ended, 3) if ended else None
    figures["client_lag_p99_ms"] = _client_lag_ms(rows)
    return figures


def client_limited(figures: dict[str, object]) -> bool:
    """Whether the load generator itself was late: then the latencies are not the server's."""
    lag, ttft = figures["client_lag_p99_ms"], figures["ttft_ms"]
    if not isinstance(lag, float) or not isinstance(ttft, dict):
        return False
    median = ttft.get("p50") or 0.0
    return lag > max(5.0, 0.02 * median)


def render(figures: dict[str, object]) -> str:
    """The table for the terminal."""
    lines = [f"requests        {figures['requests']}   {_counts(figures['outcomes'])}"]
    columns = "".join(f"{name:>10}" for name in ("mean", *(f"p{p}" for p in _PERCENTILES)))
    lines.append(f"{'':<12}{columns}")
    for name in ("ttft", "tpot", "e2e"):
        spread = figures[f"{name}_ms"]
        if isinstance(spread, dict):
            cells = "".join(f"{_number(value):>10}" for value in spread.values())
            lines.append(f"{name + ' ms':<12}{cells}")
    share = figures["cache_hit_share"]
    lines.append(
        f"cache hits      {figures['cached_tokens']} of {figures['prompt_tokens']} prompt tokens"
        + (f" ({share:.1%})" if isinstance(share, float) else "")
    )
    lines.append(f"throughput      {_number(figures['requests_per_s'])} requests/s answered")
    if client_limited(figures):
        lines.append("NOT VALID: the client was late sending; run it on a less busy machine")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    mean = sum(values) / len(values) if values else None
    spread: dict[str, float | None] = {"mean": None if mean is None else round(mean, 3)}
    for percent in _PERCENTILES:
        value = percentile(values, percent)
        spread[f"p{percent}"] = None if value is None else round(value, 3)
    return spread


def _client_lag_ms(rows: Sequence[Row]) -> float | None:
    lags = sorted(row.sent_s - row.intended_s for row in rows if row.sent_s is not None)
    return round(lags[math.ceil(0.99 * len(lags)) - 1] * 1000, 3) if lags else None


def _counts(outcomes: object) -> str:
    if not isinstance(outcomes, dict):
        return ""
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def _number(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else "-"
