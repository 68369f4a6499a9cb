"""What an operator may choose about placement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from services.scheduler.core.placement.weights import Weights

FETCHES: Final = ("cheapest", "none")
ADMISSIONS: Final = ("early_reject_predicted", "early_reject_now", "none")


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Names are those of the registries (`registry.py`, `decode_rules.py`, `split.py`, ...)."""

    colocate_below_tokens: int
    """Under split `uncached_threshold`: colocate when decode's cache leaves fewer tokens."""
    policy: str = "baton"
    split: str = "uncached_threshold"
    decode: str = ""
    """Who decodes under a rival; empty: what belongs to it."""
    replication: str = "baton_benefit"
    fetch: str = "cheapest"
    peers: bool = True
    """Whether prefill workers copy blocks from each other, not from the pool alone."""
    admission: str = "early_reject_predicted"
    objectives: bool = False
    """Whether a request that names no latency objective is refused when it would miss the
    weights' ones. Its own objectives and its deadline always count."""
    weights: Weights = field(default_factory=Weights)
