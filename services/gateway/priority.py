"""How soon a request wants its turn, in the dialects that clients speak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.gateway.fields import Body, integer, refuse
from shared.wire.requests import TOP_PRIORITY

TIERS: Final[Mapping[str, int]] = {
    "flex": -50,
    "auto": 0,
    "default": 0,
    "scale": 0,
    "priority": 50,
}
"""OpenAI's `service_tier`."""


def read_priority(body: Body) -> int:
    """-100 to 100, higher is sooner. The field `priority` is vLLM's, where lower is sooner. Both
    may be there if they say the same. Raises ClientError."""
    lower = integer(body, "priority", -TOP_PRIORITY, TOP_PRIORITY)
    tier = body.get("service_tier")
    if tier is not None and (not isinstance(tier, str) or tier not in TIERS):
        refuse("service_tier", f"must be one of {', '.join(TIERS)}")
    if lower is None:
        return 0 if tier is None else TIERS[str(tier)]
    if tier is not None and TIERS[str(tier)] != -lower:
        refuse("priority", "contradicts service_tier")
    return -lower
