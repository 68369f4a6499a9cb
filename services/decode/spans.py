"""The spans of jobs: one open span a job, and the core's facts as its children."""

from __future__ import annotations

from typing import Final

from services.decode.core.actions import JobClosed, Traced
from shared.errors import Code
from shared.ids import Attempt, RequestId
from shared.telemetry.trace import Span, Tracer
from shared.wire.requests import LeaseKey

_FAILURES: Final = frozenset(code.value for code in Code) - {Code.CANCELLED.value}


class JobSpans:
    """Every span that is opened is closed with its job."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[LeaseKey, Span] = {}

    def opened(self, request: RequestId, attempt: Attempt, parent: str) -> None:
        """A job arrived. Again: nothing changes."""
        key = LeaseKey(request, attempt)
        if key not in self._open:
            attributes: dict[str, str | int] = {
                "baton.request.id": request,
                "baton.attempt": attempt,
            }
            self._open[key] = self._tracer.start("decode.job", parent, attributes)

    def traced(self, fact: Traced) -> None:
        """A fact about an open job. The end of a pull may come later than the job's: then it
        stands alone and only its link tells where it belongs."""
        span = self._open.get(LeaseKey(fact.request, fact.attempt))
        parent = "" if span is None else span.traceparent
        links = (fact.link,) if fact.link else ()
        if span is not None or links:
            self._tracer.record(
                fact.name, parent or fact.link, fact.start_s, fact.end_s, fact.attributes, links
            )

    def closed(self, action: JobClosed) -> None:
        span = self._open.get(LeaseKey(action.request, action.attempt))
        if span is not None:
            for name, value in action.attributes.items():
                span.set(name, value)
            span.set("baton.outcome", action.outcome)
        code = action.outcome if action.outcome in _FAILURES else None
        self.ended(action.request, action.attempt, code)

    def ended(self, request: RequestId, attempt: Attempt, code: str | None) -> None:
        """The job is over or was refused."""
        span = self._open.pop(LeaseKey(request, attempt), None)
        if span is not None:
            span.end(code)

    def context(self, key: LeaseKey) -> str:
        """The traceparent for messages about this job."""
        span = self._open.get(key)
        return "" if span is None else span.traceparent

    def close_all(self) -> None:
        """The process ends: no span stays open."""
        for span in self._open.values():
            span.end(Code.DRAINING.value)
        self._open.clear()
