"""The bounded queue between ended spans and the exporter's thread; losses are counted by reason."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from shared.telemetry.metrics import Metrics

QUEUE_SPANS: Final = 8192
BATCH_SPANS: Final = 512
FLUSH_MS: Final = 250


class SpanQueue(SpanProcessor):
    """A bounded batch queue that counts what it loses, by reason."""

    def __init__(self, exporter: SpanExporter, metrics: Metrics) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._dropped = metrics.counter(
            "baton_spans_dropped_total", "Spans that were not delivered.", ("reason",)
        )
        self._exporter = exporter
        self._batches = BatchSpanProcessor(
            _Counted(exporter, self),
            max_queue_size=2 * QUEUE_SPANS,
            schedule_delay_millis=FLUSH_MS,
            max_export_batch_size=BATCH_SPANS,
        )

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            full = self._waiting >= QUEUE_SPANS
            self._waiting += not full
        if full:
            self._dropped.labels("queue_full").inc()
        else:
            self._batches.on_end(span)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        return

    def left(self, spans: int, delivered: bool) -> None:
        """The export thread took `spans` out of the queue."""
        with self._lock:
            self._waiting -= spans
        if not delivered:
            self._dropped.labels("export_failed").inc(spans)

    def abandon(self) -> None:
        """Stop retrying: whatever is still queued fails at once."""
        self._exporter.shutdown()

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 2000) -> bool:
        return self._batches.force_flush(timeout_millis)


class _Counted(SpanExporter):
    """The real exporter, with its result told to the queue."""

    def __init__(self, exporter: SpanExporter, queue: SpanQueue) -> None:
        self._exporter = exporter
        self._queue = queue

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._queue.left(len(spans), result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
