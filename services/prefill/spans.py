"""The spans of jobs: one open span a job, and the machine's facts as its children."""

from __future__ import annotations

from services.prefill.core.actions import JobClosed, JobOpened, Traced
from services.prefill.core.jobs import JobKey
from shared.ids import Attempt, RequestId
from shared.telemetry.trace import Span, Tracer, Value

_JOB = "prefill.job"
_CHUNK = "prefill.chunk"


class JobSpans:
    """Every span that is opened is closed with its job."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[JobKey, Span] = {}
        self._chunks: dict[JobKey, str] = {}

    def opened(self, action: JobOpened) -> None:
        key = JobKey(action.request, action.attempt)
        attributes: dict[str, Value] = {
            "baton.request.id": action.request,
            "baton.attempt": action.attempt,
        }
        self._open[key] = self._tracer.start(_JOB, action.trace, attributes)

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
        context = self._tracer.record(
            fact.name, span.traceparent, fact.start_s, fact.end_s, fact.attributes
        )
        if fact.name == _CHUNK:
            self._chunks[key] = context

    def closed(self, action: JobClosed) -> None:
        key = JobKey(action.request, action.attempt)
        self._chunks.pop(key, None)
        span = self._open.pop(key, None)
        if span is not None:
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
