"""Baton's own request and response headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.gateway.core.events import Hints
from services.gateway.fates import Said, told
from services.gateway.hints import read_headers
from services.gateway.session import Session
from shared.errors import ClientError
from shared.telemetry.trace import trace_id

ROUTES: Final = ("auto", "disaggregated", "colocated")
MAX_DEADLINE_MS: Final = 600_000
_WHOLE: Final = re.compile(r"[0-9]{1,9}\Z")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a client may ask for beside the body."""

    deadline_s: float
    route: str
    strict: bool
    no_queue: bool
    hints: Hints
    traceparent: str


def read_wishes(fields: Mapping[str, str], deadline_s: float, route: str) -> Wishes:
    """Raises ClientError naming the header."""
    wanted_ms = fields.get("x-baton-deadline-ms")
    if wanted_ms is not None:
        if not _WHOLE.match(wanted_ms) or not 1 <= int(wanted_ms) <= MAX_DEADLINE_MS:
            message = f"'x-baton-deadline-ms' must be an integer from 1 to {MAX_DEADLINE_MS}"
            raise ClientError(message, param="x-baton-deadline-ms")
        deadline_s = int(wanted_ms) / 1000
    wanted_route = fields.get("x-baton-route", route)
    if wanted_route not in ROUTES:
        message = f"'x-baton-route' must be one of {', '.join(ROUTES)}"
        raise ClientError(message, param="x-baton-route")
    return Wishes(
        deadline_s=deadline_s,
        route=wanted_route,
        strict=fields.get("x-baton-strict") == "1",
        no_queue=fields.get("x-baton-no-queue") == "1",
        hints=read_headers(fields),
        traceparent=fields.get("traceparent", ""),
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a request before it is answered."""

    prompt_tokens: int
    ignored: tuple[str, ...]
    """Parameters that were accepted and not used."""
    said: Said


def answer_headers(session: Session, facts: Facts) -> dict[str, str]:
    """The facts that are known when the status line goes out."""
    headers = {"x-baton-trace-id": trace_id(session.root.traceparent)}
    if facts.ignored:
        headers["x-baton-ignored-params"] = ", ".join(facts.ignored)
    if fates := facts.said.fates(session.placement):
        headers["x-baton-hints"] = told(fates)
    if session.placement is not None:
        headers["x-baton-route"] = session.placement.route
        estimate_ms = max(0, round(session.placement.estimated_ttft_s * 1000))
        headers["x-baton-ttft-estimate-ms"] = str(estimate_ms)
    if session.first_token_s is not None:
        headers["x-baton-cache"] = f"hit={session.cached_tokens};of={facts.prompt_tokens}"
    return headers
