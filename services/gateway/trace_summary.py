"""One line about each trace, from the spans of a batch: what a search can ask for.

The root span knows the request; every span knows its worker. Pure; owns no storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from services.gateway.otlp import SpanRow
from shared.errors import Code

OPEN: Final = "open"
"""The root span has not arrived: the request runs, or its gateway died."""
STATUSES: Final = ("finished", "failed", "cancelled", OPEN)
_SERVER_KIND: Final = 2
_HINT: Final = "baton.hint."
_CANCELS: Final = (Code.CANCELLED.value, Code.CLIENT_GONE.value, Code.CLIENT_TOO_SLOW.value)


@dataclass(slots=True)
class Summary:
    """A trace as far as one batch tells. Times in nanoseconds; None: not told."""

    trace_id: str
    start_ns: int
    end_ns: int
    error: bool = False
    root: str = ""
    request: str = ""
    tenant: str = ""
    route: str = ""
    status: str = OPEN
    reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 0
    ttft_ns: int | None = None
    slo_missed: str = ""
    """Comma-separated: ttft, tpot."""
    run: str = ""
    """The load run that named the request."""
    hints: str = ""
    """What became of each hint, as `name=fate` with semicolons between."""
    workers: set[str] = field(default_factory=set)


def summarise(batch: Iterable[SpanRow]) -> list[Summary]:
    """One summary for each trace of the batch."""
    found: dict[str, Summary] = {}
    for row in batch:
        known = found.get(row.trace_id)
        if known is None:
            known = found[row.trace_id] = Summary(row.trace_id, row.start_ns, row.end_ns)
        known.start_ns = min(known.start_ns, row.start_ns)
        known.end_ns = max(known.end_ns, row.end_ns)
        known.error |= row.error
        if row.worker:
            known.workers.add(row.worker)
        if row.kind == _SERVER_KIND and row.request:
            _take_root(known, row)
    return list(found.values())


def _take_root(known: Summary, row: SpanRow) -> None:
    said: Mapping[str, Any] = orjson.loads(row.attributes)
    known.root, known.request = row.name, row.request
    known.tenant = _text(said, "baton.tenant")
    known.route = _text(said, "baton.route")
    known.prompt_tokens = _count(said, "gen_ai.usage.input_tokens")
    known.cached_tokens = _count(said, "gen_ai.usage.cache_read.input_tokens")
    known.output_tokens = _count(said, "gen_ai.usage.output_tokens")
    known.attempts = _count(said, "baton.attempts")
    known.slo_missed = _text(said, "baton.slo.missed")
    known.run = _text(said, "baton.run")
    known.hints = _fates(said)
    first_s = said.get("gen_ai.response.time_to_first_chunk")
    known.ttft_ns = round(first_s * 1e9) if isinstance(first_s, int | float) else None
    cause, error = _text(said, "baton.cancel.cause"), _text(said, "error.type")
    known.reason = error or cause
    if cause or error in _CANCELS:
        known.status = "cancelled"
    else:
        known.status = "failed" if error or row.error else "finished"


def _fates(said: Mapping[str, Any]) -> str:
    found = [name for name in said if name.startswith(_HINT)]
    return ";".join(f"{name.removeprefix(_HINT)}={_text(said, name)}" for name in sorted(found))


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name, "")
    return value[:128] if isinstance(value, str) else ""


def _count(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name, 0)
    return value if type(value) is int and 0 <= value < 1 << 53 else 0
