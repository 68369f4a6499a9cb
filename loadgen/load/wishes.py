"""What a captured request said about itself, said again: Baton's headers and the fields that other
servers know too. A workload that wishes for nothing sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadgen.workloads.request import Request


@dataclass(frozen=True, slots=True)
class Wishes:
    """Headers and body fields of one request."""

    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)


NO_WISHES = Wishes()


def wishes_of(request: Request, sessions: bool) -> Wishes:
    """`sessions`: its session number stands for a client's affinity key."""
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    if sessions and request.session is not None:
        headers["x-baton-affinity"] = f"session-{request.session}"
    for name, value_s in (("ttft", request.ttft_slo_s), ("tpot", request.tpot_slo_s)):
        if value_s:
            headers[f"x-baton-{name}-slo-ms"] = str(max(1, round(1000 * value_s)))
    if request.priority:
        body["priority"] = -request.priority  # vLLM's field: lower is sooner
    if request.expected_tokens:
        body["nvext"] = {"agent_hints": {"osl": int(request.expected_tokens)}}
    return Wishes(headers, body) if headers or body else NO_WISHES
