"""Whether to believe a run. *Client limited*: the load generator was late, so the latencies are not
the server's. *Server saturated*: the backlog grew; true, but no steady state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from loadgen.reports.run_files import Numbers, Rows

LAG_LIMIT_MS: Final = 5.0
LAG_SHARE: Final = 0.02
SENT_SHARE: Final = 0.98
LOOP_LAG_LIMIT_MS: Final = 20.0
PROCESSOR_LIMIT: Final = 0.9
_POINTS: Final = 40
_T_95: Final = 2.02
"""Student's t for about 40 points, both sides."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the client's own figures say."""

    limited: bool
    reasons: tuple[str, ...]
    lag_ms: dict[str, float | None] = field(default_factory=dict)


def client_verdict(rows: Rows, scheduled: int, clients: Sequence[dict[str, Any]]) -> Verdict:
    """`rows`: measured ones; `scheduled`: how many were due; `clients`: what each process told."""
    lag = lags(rows) * 1000
    figures: dict[str, float | None] = {
        name: round(float(np.quantile(lag, share, method="inverted_cdf")), 4) if len(lag) else None
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
    }
    reasons = []
    ttft = rows.where(rows.ok).numbers["ttft_s"]
    median_ms = float(np.nanmedian(ttft)) * 1000 if len(ttft) else 0.0
    limit_ms = max(LAG_LIMIT_MS, LAG_SHARE * median_ms)
    if (figures["p99"] or 0.0) > limit_ms:
        reasons.append(
            f"requests left late: p99 {figures['p99']:.1f} ms after they were due (limit "
            f"{limit_ms:.1f} ms)"
        )
    sent = int((~np.isnan(rows.numbers["sent_s"])).sum())
    unsent = int((rows.numbers["held_s"] > 0).sum()) + _never_released(rows)
    if scheduled and sent + unsent < SENT_SHARE * scheduled:
        reasons.append(f"only {sent} of {scheduled} requests that were due were sent")
    for client in clients:
        reasons += _of_process(client)
    return Verdict(bool(reasons), tuple(reasons), figures)


def lags(rows: Rows) -> Numbers:
    """Actual - intended send, in seconds, less what a cap on requests at a time held back."""
    late = rows.numbers["sent_s"] - rows.numbers["intended_s"] - rows.numbers["held_s"]
    found: Numbers = np.maximum(0.0, late[~np.isnan(late)])
    return found


def saturation(rows: Rows) -> dict[str, Any]:
    """Requests under way over the time of sending: does their number grow, at 95 % confidence?"""
    sent = np.sort(rows.numbers["intended_s"])
    if len(sent) < 20 or sent[-1] - sent[0] <= 0:
        return {"saturated": False, "slope_per_s": None}
    # A run begins empty: its first answers fill it, which is no growth.
    filling = rows.numbers["e2e_s"][rows.ok]
    skipped = float(np.nanquantile(filling, 0.95)) if len(filling) else 0.0
    skipped = min(skipped, 0.5 * float(sent[-1] - sent[0]))
    times, open_ = backlog(rows, _POINTS, skipped)
    centred = times - times.mean()
    slope = float((centred * open_).sum() / (centred**2).sum())
    residual = open_ - open_.mean() - slope * centred
    # Neighbouring points share requests: the effective number of points is smaller.
    lag_one = float((residual[1:] * residual[:-1]).sum() / max(1e-12, (residual**2).sum()))
    inflation = (1 + max(0.0, lag_one)) / max(0.05, 1 - max(0.0, lag_one))
    error = math.sqrt(
        float((residual**2).sum()) / (len(times) - 2) / float((centred**2).sum()) * inflation
    )
    grown = slope * float(times[-1] - times[0])
    certain = slope - _T_95 * error > 0 and grown > max(4.0, 0.3 * float(open_.mean()))
    return {"saturated": bool(certain), "slope_per_s": round(slope, 5)}


def backlog(rows: Rows, points: int, skipped_s: float = 0.0) -> tuple[Numbers, Numbers]:
    """(instants, requests intended but not ended by then), over the time of sending, less its
    beginning."""
    sent = np.sort(rows.numbers["intended_s"])
    ended = np.where(
        np.isnan(rows.numbers["last_s"]), rows.numbers["sent_s"], rows.numbers["last_s"]
    )
    ended = np.sort(np.where(np.isnan(ended), np.inf, ended))
    times = np.linspace(float(sent[0]) + skipped_s, float(sent[-1]), points)
    began = np.searchsorted(sent, times, side="right")
    over = np.searchsorted(ended, times, side="right")
    return times, (began - over).astype(np.float64)


def _never_released(rows: Rows) -> int:
    waiting = np.char.startswith(rows.words["reason"], "not sent")
    return int(waiting.sum()) if len(rows) else 0


def _of_process(client: dict[str, Any]) -> list[str]:
    name, strain = f"client process {client.get('process', 0)}", client.get("strain") or {}
    if client.get("died"):
        return [f"{name} died"]
    found = []
    lag_ms, used = strain.get("loop_lag_p99_ms") or 0.0, strain.get("processor_share") or 0.0
    if lag_ms > LOOP_LAG_LIMIT_MS:
        found.append(f"{name}: its event loop woke late, p99 {lag_ms:.1f} ms")
    if used > PROCESSOR_LIMIT:
        found.append(f"{name}: busy {used:.0%} of the time; add --processes")
    return found
