"""Spans of one process: W3C context as plain strings, export in background threads.

Nothing here waits on the request path: spans go to bounded queues, and what cannot be exported
is dropped and counted. Content (prompts, outputs) is never an attribute.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.sdk.trace.export import SpanExporter

from shared.clock import Clock
from shared.config import STANDARD_OTLP
from shared.telemetry.context import below, derived, read_context
from shared.telemetry.metrics import Metrics
from shared.telemetry.otlp_http import OtlpHttp
from shared.telemetry.span import Kind, Span, Value
from shared.telemetry.span_queue import SpanQueue
from shared.telemetry.standard import StandardExport

__all__ = ["Kind", "Span", "Tracer", "Value", "trace_id"]

CLOSE_TIMEOUT_S: Final = 1.0


class Tracer:
    """Makes spans for one service. `endpoint` is a full OTLP/HTTP URL, STANDARD_OTLP (the
    OTEL_EXPORTER_OTLP_* variables decide), several of them with commas between, or None: spans
    only carry their context on. A test passes `exporter` to receive each span at its end."""

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
        resource = {"service.name": f"baton-{service}", "service.instance.id": worker}
        self._queues: list[SpanQueue] = []
        self._ended = None
        if exporter is not None:
            self._ended = StandardExport(resource, exporter).one
        elif endpoint is not None:
            counted = metrics or Metrics()
            for place in endpoint.split(","):
                standard = place == STANDARD_OTLP
                export = StandardExport(resource) if standard else OtlpHttp(place, resource)
                self._queues.append(SpanQueue(export, counted))
            only = self._queues[0].put if len(self._queues) == 1 else self._put_everywhere
            self._ended = only

    def start(
        self,
        name: str,
        parent: str = "",
        attributes: Mapping[str, Value] | None = None,
        links: Sequence[str] = (),
        *,
        kind: Kind = Kind.INTERNAL,
        start_s: float | None = None,
        only: bool = False,
    ) -> Span:
        """Open a span under `parent` (a traceparent; empty or bad: a new trace). `start_s` is a
        monotonic instant of the clock, default now. With `only` it is the one of its name there:
        its id follows from the parent's, so that others can name it."""
        above = read_context(parent) if parent else None
        context = below(above) if above is None or not only else derived(above, name)
        span = Span(name, context, above, kind, self._clock, self._ended if context.flags else None)
        if self._ended is None or not context.flags:
            return span
        clock = self._clock
        span.start_ns = clock.unix_ns(clock.now() if start_s is None else start_s)
        if attributes:
            span.attributes.update(attributes)
        if links:
            span.links = tuple(found for link in links if (found := read_context(link)) is not None)
        return span

    def record(
        self,
        name: str,
        parent: str,
        start_s: float,
        end_s: float,
        attributes: Mapping[str, Value] | None = None,
        links: Sequence[str] = (),
        *,
        kind: Kind = Kind.INTERNAL,
        events: Sequence[tuple[float, str]] = (),
    ) -> str:
        """A span that already happened, from two monotonic instants; so did its events. Returns
        its traceparent."""
        span = self.start(name, parent, attributes, links, kind=kind, start_s=start_s)
        span.failed = "error.type" in span.attributes
        if events and span.start_ns:
            unix_ns = self._clock.unix_ns
            span.events = [(moment, unix_ns(at_s), {}) for at_s, moment in events]
        span.end_at(max(start_s, end_s))
        return span.traceparent

    async def flush(self) -> None:
        """Send what has ended by now, within about a second, and go on."""
        for queue in self._queues:
            await asyncio.to_thread(queue.flush, CLOSE_TIMEOUT_S)

    async def close(self) -> None:
        """Send what is queued, for about a second; the rest is lost and counted."""
        if not self._queues:
            return
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def finish() -> None:
            for queue in self._queues:
                queue.close()
            for queue in self._queues:
                queue.join()
            with contextlib.suppress(RuntimeError):  # the loop may be gone by then
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=finish, name="trace-close", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await done.wait()
        except TimeoutError:
            for queue in self._queues:
                queue.abandon()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S / 4):
                    await done.wait()

    def _put_everywhere(self, span: Span) -> None:
        for queue in self._queues:
            queue.put(span)


def trace_id(traceparent: str) -> str:
    """The 32 hex characters of the trace, or '' when there is none."""
    context = read_context(traceparent)
    return "" if context is None else context.trace_id
