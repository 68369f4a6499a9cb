"""When a change of roles is worth it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MODES: Final = ("off", "advise", "act")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    """How the planner looks, and what it may do."""

    mode: str = "off"
    """advise: tell people and metrics; act: order workers, too."""
    tick_s: float = 5.0
    window_s: float = 60.0
    """Requests that arrived within it are the load; endings within it are what was kept."""
    cooldown_s: float = 60.0
    """At least so long between two changes, and after another scheduler took the lead."""
    target: float = 0.9
    """Share of requests that should meet their objectives: above it nothing is changed."""
    gain: float = 1.1
    """A change must bring at least so many times the goodput of today."""
    ticks: int = 3
    """In a row that say the same before anything is done."""
    least_requests: int = 20
    """In the window, or nothing is concluded."""
    horizon_s: float = 600.0
    """A change must pay for itself within it."""
    flip_limit_s: float = 300.0
    """A worker that is not back by then has not changed."""
    may_colocate: bool = True
    """The last prefill worker may become a decode worker: those then prefill, chunk by chunk."""
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.1
    """For requests that name no objective of their own."""


OFF: Final = BalanceSettings()
