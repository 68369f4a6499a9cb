"""Spans as OpenTelemetry's own objects, for its exporter: it reads the OTEL_EXPORTER_OTLP_*
variables (address, headers, certificates, compression) and speaks protobuf.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from shared.telemetry.context import Context
from shared.telemetry.span import Span

_SCOPE = InstrumentationScope("baton")


class StandardExport:
    """Any exporter of OpenTelemetry; without one, the one that the variables describe."""

    def __init__(self, resource: Mapping[str, str], exporter: SpanExporter | None = None) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # losses are counted
        self._resource = Resource.create(dict(resource))
        self._exporter = OTLPSpanExporter() if exporter is None else exporter

    def send(self, spans: Sequence[Span], stop: threading.Event) -> bool:
        found = [self._readable(span) for span in spans]
        return self._exporter.export(found) is SpanExportResult.SUCCESS

    def one(self, span: Span) -> None:
        """At once, for tests."""
        self._exporter.export([self._readable(span)])

    def give_up(self) -> None:
        self._exporter.shutdown()

    def close(self) -> None:
        self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        context = _context(span.context)
        above = Context(span.context.trace_id, span.parent_id, span.context.flags)
        return ReadableSpan(
            name=span.name,
            context=context,
            parent=_context(above) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(name, said, at_ns) for name, at_ns, said in span.events],
            links=[Link(_context(to)) for to in span.links],
            kind=SpanKind(span.kind - 1),
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=_SCOPE,
        )


def _context(place: Context) -> SpanContext:
    return SpanContext(
        int(place.trace_id, 16),
        int(place.span_id, 16),
        is_remote=False,
        trace_flags=TraceFlags(place.flags & 1),
    )
