"""The spans of jobs: one open span a job, and the machine's facts as its children."""

from __future__ import annotations

from services.prefill.core.actions import JobClosed, JobOpened, Traced
from services.prefill.core.jobs import JobKey
from shared.ids import Attempt, RequestId
from shared.telemetry.jobs import Fold, Place, hop
from shared.telemetry.trace import Kind, Span, Tracer, Value

_JOB = "prefill.job"
_QUEUE = "prefill.queue"
_CHUNK = "prefill.chunk"
_FETCH = "prefill.fetch"


class JobSpans:
    """Every span that is opened is closed with its job."""

    def __init__(self, tracer: Tracer, place: Place) -> None:
        self._tracer = tracer
        self._place = place
        self._open: dict[JobKey, Span] = {}
        self._chunks: dict[JobKey, str] = {}
        self._ahead: dict[JobKey, int] = {}
        """Prompt tokens that were to be computed before the job came."""
        self._fold = Fold()

    def opened(self, action: JobOpened, tokens_ahead: int = 0) -> None:
        key = JobKey(action.request, action.attempt)
        attributes: dict[str, Value] = {
            "baton.request.id": action.request,
            **self._place.identity(action.attempt),
            **hop(self._place.subject, "process"),
        }
        self._ahead[key] = tokens_ahead
        self._open[key] = self._tracer.start(
            _JOB, action.trace, attributes, kind=Kind.CONSUMER, only=True
        )

    def traced(self, fact: Traced) -> None:
        """A fact about an open job; the job's own fact completes its span."""
        key = JobKey(fact.request, fact.attempt)
        span = self._open.get(key)
        if span is None:
            return
        if fact.name == _JOB:
            for name, value in fact.attributes.items():
                span.set(name, value)
            return
        if not self._fold.admits(key, fact.name):
            return
        attributes: dict[str, Value] = {**fact.attributes}
        if fact.name == _QUEUE:
            attributes |= self._place.identity(fact.attempt)
            attributes["baton.queue.tokens_ahead"] = self._ahead.get(key, 0)
        if fact.name == _FETCH:
            blocks = fact.attributes.get("baton.fetch.blocks", 0)
            attributes["baton.fetch.bytes"] = int(blocks) * self._place.page_bytes
        context = self._tracer.record(
            fact.name, span.traceparent, fact.start_s, fact.end_s, attributes
        )
        if fact.name == _CHUNK:
            self._chunks[key] = context

    def closed(self, action: JobClosed) -> None:
        key = JobKey(action.request, action.attempt)
        self._chunks.pop(key, None)
        self._ahead.pop(key, None)
        folded = self._fold.closed(key)
        span = self._open.pop(key, None)
        if span is not None:
            for name, count in folded.items():
                span.set(name, count)
            span.end(action.code)

    def context(self, request: RequestId, attempt: Attempt) -> str:
        """The traceparent for messages about this job: the latest chunk, else the job."""
        key = JobKey(request, attempt)
        span = self._open.get(key)
        return self._chunks.get(key) or (span.traceparent if span is not None else "")

    def close_all(self) -> None:
        """The process ends: no span stays open."""
        for span in self._open.values():
            span.end("draining")
        self._open.clear()
        self._chunks.clear()
