"""Spans of one process: W3C context as plain strings, OTLP export in a background thread.

Nothing here waits on the request path: spans go to a bounded queue, and what cannot be exported
is dropped and counted. Content (prompts, outputs) is never an attribute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, get_current_span
from opentelemetry.trace import Span as ApiSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.clock import Clock
from shared.config import STANDARD_OTLP
from shared.telemetry.metrics import Metrics
from shared.telemetry.span_queue import SpanQueue

Value = str | bool | int | float | Sequence[str]
"""What an attribute may be."""

EXPORT_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0

_propagator: Final = TraceContextTextMapPropagator()
_NO_CONTEXT: Final = Context()


class Span:
    """An open span. End it once, on every path; a second `end` changes nothing."""

    __slots__ = ("_clock", "_span", "traceparent")

    def __init__(self, span: ApiSpan, clock: Clock) -> None:
        self._span = span
        self._clock = clock
        self.traceparent = _traceparent(span.get_span_context())

    def set(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, value)

    def event(self, name: str, attributes: Mapping[str, Value] | None = None) -> None:
        """A moment inside the span."""
        self._span.add_event(name, attributes, timestamp=self._clock.unix_ns(self._clock.now()))

    def end(self, error: str | None = None) -> None:
        """Close it; `error` is a code of ours, and marks the span as failed."""
        if error is not None and self._span.is_recording():
            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR)
        if self._span.is_recording():
            self._span.end(self._clock.unix_ns(self._clock.now()))

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(None if error is None else str(getattr(error, "code", type(error).__name__)))


class Tracer:
    """Makes spans for one service. `endpoint` is a full OTLP/HTTP URL, STANDARD_OTLP (the
    OTEL_EXPORTER_OTLP_* variables decide), or None: spans are made but sent nowhere. A test passes
    `exporter` to receive each span at its end."""

    def __init__(
        self,
        service: str,
        worker: str,
        clock: Clock,
        endpoint: str | None,
        metrics: Metrics | None = None,
        *,
        exporter: SpanExporter | None = None,
    ) -> None:
        self._clock = clock
        resource = Resource.create(
            {"service.name": f"baton-{service}", "service.instance.id": worker}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._queue: SpanQueue | None = None
        if exporter is not None:
            self._provider.add_span_processor(SimpleSpanProcessor(exporter))
        elif endpoint is not None:
            self._queue = SpanQueue(_exporter(endpoint), metrics or Metrics())
            self._provider.add_span_processor(self._queue)
        self._tracer = self._provider.get_tracer("baton")

    def start(
        self,
        name: str,
        parent: str = "",
        attributes: Mapping[str, Value] | None = None,
        links: Sequence[str] = (),
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        start_s: float | None = None,
    ) -> Span:
        """Open a span under `parent` (a traceparent; empty or bad: a new trace). `start_s` is a
        monotonic instant of the clock, default now."""
        moment = self._clock.now() if start_s is None else start_s
        return Span(self._open(name, parent, attributes, links, kind, moment), self._clock)

    def record(
        self,
        name: str,
        parent: str,
        start_s: float,
        end_s: float,
        attributes: Mapping[str, Value] | None = None,
        links: Sequence[str] = (),
    ) -> str:
        """A span that already happened, from two monotonic instants. Returns its traceparent."""
        span = self._open(name, parent, attributes, links, SpanKind.INTERNAL, start_s)
        error = (attributes or {}).get("error.type")
        if error is not None:
            span.set_status(StatusCode.ERROR)
        span.end(self._clock.unix_ns(max(start_s, end_s)))
        return _traceparent(span.get_span_context())

    async def close(self) -> None:
        """Send what is queued, for about a second; the rest is lost and counted."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def finish() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop may be gone by then
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=finish, name="trace-close", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await done.wait()
        except TimeoutError:
            if self._queue is not None:
                self._queue.abandon()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S / 4):
                    await done.wait()

    def _open(
        self,
        name: str,
        parent: str,
        attributes: Mapping[str, Value] | None,
        links: Sequence[str],
        kind: SpanKind,
        start_s: float,
    ) -> ApiSpan:
        contexts = [_context(link) for link in links]
        return self._tracer.start_span(
            name,
            context=_parent(parent),
            kind=kind,
            attributes=attributes,
            links=[Link(context) for context in contexts if context.is_valid],
            start_time=self._clock.unix_ns(start_s),
            record_exception=False,
            set_status_on_exception=False,
        )


def trace_id(traceparent: str) -> str:
    """The 32 hex characters of the trace, or '' when there is none."""
    context = _context(traceparent)
    return f"{context.trace_id:032x}" if context.is_valid else ""


@lru_cache(maxsize=4096)
def _parent(traceparent: str) -> Context:
    """Of one request nearly all spans have the same few parents."""
    if not traceparent:
        return _NO_CONTEXT
    return _propagator.extract({"traceparent": traceparent}, _NO_CONTEXT)


def _context(traceparent: str) -> SpanContext:
    return get_current_span(_parent(traceparent)).get_span_context()


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _exporter(endpoint: str) -> SpanExporter:
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # losses are counted, not logged
    if endpoint == STANDARD_OTLP:
        return OTLPSpanExporter()
    return OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
