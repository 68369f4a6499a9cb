"""Stored spans of one trace as plain OTLP JSON, for any other viewer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def otlp_json(spans: Iterable[Mapping[str, Any]]) -> dict[str, object]:
    """Grouped by service and worker, as a collector would have received them."""
    groups: dict[tuple[str, str], list[dict[str, object]]] = {}
    for span in spans:
        groups.setdefault((span["service"], span["worker"]), []).append(_span(span))
    return {"resourceSpans": [_group(*key, found) for key, found in groups.items()]}


def _group(service: str, worker: str, spans: list[dict[str, object]]) -> dict[str, object]:
    resource = {"service.name": service, "service.instance.id": worker}
    return {
        "resource": {"attributes": _pairs(resource)},
        "scopeSpans": [{"scope": {"name": "baton"}, "spans": spans}],
    }


def _span(span: Mapping[str, Any]) -> dict[str, object]:
    return {
        "traceId": span["trace_id"],
        "spanId": span["span_id"],
        "parentSpanId": span["parent_id"],
        "name": span["name"],
        "kind": span["kind"],
        "startTimeUnixNano": str(span["start_ns"]),
        "endTimeUnixNano": str(span["end_ns"]),
        "attributes": _pairs(span["attributes"]),
        "events": [
            {
                "name": event["name"],
                "timeUnixNano": str(event["time_ns"]),
                "attributes": _pairs(event["attributes"]),
            }
            for event in span["events"]
        ],
        "links": [
            {
                "traceId": link["trace_id"],
                "spanId": link["span_id"],
                "attributes": _pairs(link["attributes"]),
            }
            for link in span["links"]
        ],
        "status": {"code": 2 if span["error"] else 0},
    }


def _pairs(attributes: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"key": key, "value": _any(value)} for key, value in attributes.items()]


def _any(value: object) -> dict[str, object]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_any(entry) for entry in value]}}
        case dict():
            return {"kvlistValue": {"values": _pairs(value)}}
        case None:
            return {}
        case _:
            return {"stringValue": str(value)}
