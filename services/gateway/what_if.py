"""What the first token would have taken without a handover, from the scheduler's cost model.

The parts around the work are taken as they were; the prompt is priced on the decode worker that
served the request, with the pages it had. An estimate, and it says from what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.gateway.ttft_split import Split
from shared.costs import chunked_prefill_s
from shared.wire.views import WorkerSeen

_KEPT = ("receive", "parse", "render", "admit", "retried", "place", "bus_out", "bus_back", "emit")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Times in milliseconds."""

    decode: str
    ttft_ms: float
    actual_ttft_ms: float
    prefill_ms: float
    """Of that: computing the prompt on the decode worker."""
    handoff_ms: float | None
    """What the handover cost after the first token: until decode could go on. None: unknown."""
    new_tokens: int
    cached_tokens: int


def what_if_colocated(
    spans: Sequence[Mapping[str, Any]], split: Split, prompt_tokens: int, decode: WorkerSeen
) -> WhatIf | None:
    """None: the prompt was computed on the decode worker anyway, or its costs are not known."""
    named = {span["name"]: span for span in spans if span["service"].endswith("decode")}
    tokens = [s for s in spans if s["name"] == "prefill.first_token"]
    if not tokens or tokens[0]["service"].endswith("decode") or decode.cost.token_s <= 0:
        return None
    reused = named.get("decode.reserve", {"attributes": {}})["attributes"]
    cached = int(reused.get("baton.pages.reused", 0)) * decode.block_tokens
    cached = min(cached, max(0, prompt_tokens - 1))
    budget = _chunk_tokens(spans) or prompt_tokens
    new = prompt_tokens - cached
    prefill_s = chunked_prefill_s(decode.cost, new, cached, max(1, budget))
    parts = dict(split.parts)
    kept_ns = sum(parts[name] for name in _KEPT)
    generate = named.get("decode.generate")
    handoff_ns = None if generate is None else generate["start_ns"] - tokens[0]["end_ns"]
    return WhatIf(
        decode=decode.worker,
        ttft_ms=kept_ns / 1e6 + prefill_s * 1e3,
        actual_ttft_ms=split.total_ns / 1e6,
        prefill_ms=prefill_s * 1e3,
        handoff_ms=None if handoff_ns is None else max(0.0, handoff_ns / 1e6),
        new_tokens=new,
        cached_tokens=cached,
    )


def _chunk_tokens(spans: Sequence[Mapping[str, Any]]) -> int:
    """The chunk budget that the prefill worker had."""
    budgets = [span["attributes"].get("baton.chunk.budget", 0) for span in spans]
    return max((int(b) for b in budgets if isinstance(b, int)), default=0)
