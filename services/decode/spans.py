"""The spans of jobs: one open span a job, and the core's facts as its children."""

from __future__ import annotations

from typing import Final

from services.decode.core.actions import JobClosed, Traced
from shared.errors import Code
from shared.ids import Attempt, RequestId
from shared.telemetry.jobs import Fold, Place, hop
from shared.telemetry.trace import Kind, Span, Tracer, Value
from shared.wire.requests import LeaseKey

_FAILURES: Final = frozenset(code.value for code in Code) - {Code.CANCELLED.value}
_QUEUES: Final = ("decode.queue", "prefill.queue")
_OF_A_WORKER: Final = (*_QUEUES, "decode.reserve", "decode.generate")
_FETCH: Final = "decode.fetch"


class JobSpans:
    """Every span that is opened is closed with its job."""

    def __init__(self, tracer: Tracer, place: Place) -> None:
        self._tracer = tracer
        self._place = place
        self._open: dict[LeaseKey, Span] = {}
        self._ahead: dict[LeaseKey, int] = {}
        """Prompt tokens that were to be computed before the job came."""
        self._fold = Fold()

    def opened(
        self, request: RequestId, attempt: Attempt, parent: str, tokens_ahead: int = 0
    ) -> None:
        """A job arrived. Again: nothing changes."""
        key = LeaseKey(request, attempt)
        if key not in self._open:
            attributes: dict[str, Value] = {
                "baton.request.id": request,
                **self._place.identity(attempt),
                **hop(self._place.subject, "process"),
            }
            self._ahead[key] = tokens_ahead
            self._open[key] = self._tracer.start(
                "decode.job", parent, attributes, kind=Kind.CONSUMER, only=True
            )

    def traced(self, fact: Traced) -> None:
        """A fact about an open job. The end of a pull may come later than the job's: then it
        stands beside it, under the span that sealed its pages."""
        key = LeaseKey(fact.request, fact.attempt)
        span = self._open.get(key)
        parent = fact.link if span is None else span.traceparent
        if not parent or (span is not None and not self._fold.admits(key, fact.name)):
            return
        attributes: dict[str, Value] = {**fact.attributes}
        if fact.name in _OF_A_WORKER:
            attributes |= self._place.identity(fact.attempt)
        if fact.name in _QUEUES:
            attributes["baton.queue.tokens_ahead"] = self._ahead.get(key, 0)
        if fact.name == _FETCH:
            blocks = fact.attributes.get("baton.fetch.blocks", 0)
            attributes["baton.fetch.bytes"] = int(blocks) * self._place.page_bytes
        links = (fact.link,) if fact.link else ()
        self._tracer.record(
            fact.name, parent, fact.start_s, fact.end_s, attributes, links, events=fact.events
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
        key = LeaseKey(request, attempt)
        self._ahead.pop(key, None)
        folded = self._fold.closed(key)
        span = self._open.pop(key, None)
        if span is not None:
            for name, count in folded.items():
                span.set(name, count)
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
