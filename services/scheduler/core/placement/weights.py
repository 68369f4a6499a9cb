"""Every constant of the `baton` score and of its companions, each with its unit."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

NO_OBJECTIVE: Final = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A score is in request-seconds: the delay that a decision adds, summed over this request and
    all others."""

    ttft_slo_s: float = 1.0
    """s. Objective of a request that names none."""
    tpot_slo_s: float = 0.1
    """s per token. The same."""
    tie_s: float = 0.0001
    """s. Scores closer than this, or than `tie_share` of the TTFT, are equal: whoever had less to
    do lately gets the request, by lot where that is equal too."""
    tie_share: float = 0.01
    """s per s."""
    exposed_share: float = 0.05
    """s per s. What a second until the second token counts, next to one until the first."""
    later_share: float = 0.25
    """1. Of the requests that come while a prompt is computed, how many wait for it: the others
    find another worker."""
    busy_most: float = 0.95
    """1. Cap of a share of busy time: a second of work delays others by 19 s at most."""
    link_price: float = 0.1
    """s per s. A second of an idle link delays others by this much."""
    chunk_tokens: float = 512.0
    """tokens. Of one prefill step, to tell what a handoff hides behind the next chunk."""
    affinity_share: float = 0.05
    """s per s. Discount of a session's worker, as a share of the TTFT objective."""
    copy_horizon_s: float = 30.0
    """s. A copy of a hot prefix must pay within it."""
    copy_ratio: float = 1.5
    """s per s. Benefit over cost from which a copy is made."""
    drop_ratio: float = 0.5
    """s per s. Benefit over cost below which the last copy is given up ..."""
    drop_after_s: float = 60.0
    """s. ... once it has been so for this long."""
    dwell_s: float = 0.5
    """s. Between two changes of one prefix's copies."""
    busy_target: float = 0.6
    """1. Copies of a prefix are capped where each holder would be this busy."""
    copy_pages_share: float = 0.2
    """1. Of all device pages that copies may take."""
    fair_wait_s: float = 1.0
    """s. Wait from which tenants above their share are sent away first."""
    fair_slack: float = 0.25
    """1. Above its share before a tenant is sent away."""
    priority_halves: float = 50.0
    """priority steps after which the delay of others counts half."""

    def unsound(self) -> str:
        """What is wrong with a field; empty when nothing is."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0.0):
                return f"{field.name} must be a finite number of at least 0"
        return "" if self.busy_most < 1.0 else "busy_most must be below 1"
