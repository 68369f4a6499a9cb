"""Ended spans as one OTLP/JSON request. Cheaper than protobuf objects, to write and to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from shared.telemetry.span import Span, Value


def request_body(spans: Sequence[Span], resource: Mapping[str, str]) -> bytes:
    """Raises orjson.JSONEncodeError for a text that is no UTF-8."""
    group = {
        "resource": {"attributes": _pairs(resource)},
        "scopeSpans": [{"scope": {"name": "baton"}, "spans": [_span(span) for span in spans]}],
    }
    return orjson.dumps({"resourceSpans": [group]})


def _span(span: Span) -> dict[str, Any]:
    context = span.context
    found: dict[str, Any] = {
        "traceId": context.trace_id,
        "spanId": context.span_id,
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _pairs(span.attributes),
    }
    if span.parent_id:
        found["parentSpanId"] = span.parent_id
    if span.events:
        found["events"] = [
            {"name": name, "timeUnixNano": str(at_ns), "attributes": _pairs(said)}
            for name, at_ns, said in span.events
        ]
    if span.lost_events:
        found["droppedEventsCount"] = span.lost_events
    if span.links:
        found["links"] = [{"traceId": to.trace_id, "spanId": to.span_id} for to in span.links]
    if span.failed:
        found["status"] = {"code": 2}
    return found


def _pairs(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    """64-bit numbers are texts in OTLP's JSON, and so are numbers that JSON does not have."""
    match value:
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(int(value))}
        case float():
            return {"doubleValue": value if math.isfinite(value) else _odd(value)}
        case _:
            return {"arrayValue": {"values": [_value(entry) for entry in value]}}


def _odd(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
