"""OTLP trace requests in JSON to span rows, without the way through protobuf objects: the form
in which our own services send. Unknown fields are ignored, bad ones refuse the request.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from services.gateway.otlp import MAX_SPANS, MAX_TEXT, SpanRow, bad_body
from shared.errors import ClientError, Code

_KINDS: Final = {
    "SPAN_KIND_INTERNAL": 1,
    "SPAN_KIND_SERVER": 2,
    "SPAN_KIND_CLIENT": 3,
    "SPAN_KIND_PRODUCER": 4,
    "SPAN_KIND_CONSUMER": 5,
}
_ERRORS: Final = (2, "STATUS_CODE_ERROR")
_MOST_NS: Final = 2**63 - 1
_DEEPEST: Final = 8
_NOTHING: Final = b"{}"
_NO_LIST: Final = b"[]"


def read_json(body: bytes) -> list[SpanRow]:
    """All spans of a request. Raises ClientError."""
    rows: list[SpanRow] = []
    try:
        for group in _list(orjson.loads(body), "resourceSpans"):
            resource = _attributes(group.get("resource") or {})
            service = str(resource.get("service.name", "unknown"))[:128]
            worker = str(resource.get("service.instance.id", ""))[:128]
            for scope in _list(group, "scopeSpans"):
                rows += [_row(span, service, worker) for span in _list(scope, "spans")]
                if len(rows) > MAX_SPANS:
                    raise ClientError("too many spans in one request", Code.BODY_TOO_LARGE)
    except (orjson.JSONDecodeError, TypeError, ValueError, AttributeError, KeyError):
        raise bad_body() from None
    return rows


def _row(span: Mapping[str, Any], service: str, worker: str) -> SpanRow:
    attributes = _attributes(span)
    events = [
        {
            "name": _text(event.get("name", ""), 256),
            "time_ns": _ns(event.get("timeUnixNano", 0)),
            "attributes": _attributes(event),
        }
        for event in _list(span, "events")
    ]
    links = [
        {
            "trace_id": _id(link["traceId"], 32),
            "span_id": _id(link["spanId"], 16),
            "attributes": _attributes(link),
        }
        for link in _list(span, "links")
    ]
    parent = span.get("parentSpanId", "")
    return SpanRow(
        trace_id=_id(span["traceId"], 32),
        span_id=_id(span["spanId"], 16),
        parent_id=_id(parent, 16) if parent else "",
        service=service,
        worker=worker,
        name=_text(span.get("name", ""), 256),
        kind=_kind(span.get("kind", 0)),
        start_ns=_ns(span.get("startTimeUnixNano", 0)),
        end_ns=_ns(span.get("endTimeUnixNano", 0)),
        error=(span.get("status") or {}).get("code", 0) in _ERRORS,
        attributes=orjson.dumps(attributes) if attributes else _NOTHING,
        events=orjson.dumps(events) if events else _NO_LIST,
        links=orjson.dumps(links) if links else _NO_LIST,
        request=str(attributes.get("baton.request.id", ""))[:64],
    )


def _list(holder: Mapping[str, Any], name: str) -> list[Any]:
    found = holder.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise ValueError(name)
    return found


def _id(text: str, length: int) -> str:
    """Raises ValueError for what is no id of that length."""
    if len(bytes.fromhex(text)) * 2 != length or len(text) != length:
        raise ValueError("id")
    return text.lower()


def _text(value: object, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value[:most]


def _kind(value: object) -> int:
    if isinstance(value, str):
        return _KINDS.get(value, 0)
    return value if type(value) is int and 0 <= value < 64 else 0


def _ns(value: object) -> int:
    """A text of digits, as OTLP has it, or a number."""
    if type(value) is not int and not (isinstance(value, str) and value.isascii()):
        raise ValueError("time")
    found = int(value)
    if not 0 <= found < 2**64:
        raise ValueError("time")
    return min(found, _MOST_NS)


def _attributes(holder: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in _list(holder, "attributes"):
        value = pair.get("value") or {}
        held = value.get("stringValue")  # most are texts: straight through
        if type(held) is not str or len(held) > MAX_TEXT:
            held = _any(value, 0)
        found[_text(pair["key"], 256)] = held
    return found


def _any(value: Mapping[str, Any], depth: int) -> object:
    """A JSON value; what JSON cannot hold becomes text or null."""
    if depth > _DEEPEST:
        return None
    for name, held in value.items():
        read = _READ.get(name)
        if read is not None:
            return read(held, depth)
    return None


def _integer(held: Any, depth: int) -> int:
    if isinstance(held, bool | float):
        raise TypeError("integer")
    found = int(held)
    if not -(2**63) <= found < 2**63:
        raise ValueError("integer")
    return found


def _double(held: Any, depth: int) -> float | None:
    if isinstance(held, bool):
        raise TypeError("double")
    found = float(held)
    return found if math.isfinite(found) else None


def _boolean(held: Any, depth: int) -> bool:
    if not isinstance(held, bool):
        raise TypeError("boolean")
    return held


_READ: Final[Mapping[str, Callable[[Any, int], object]]] = {
    "stringValue": lambda held, depth: _text(held, MAX_TEXT),
    "intValue": _integer,
    "doubleValue": _double,
    "boolValue": _boolean,
    "bytesValue": lambda held, depth: base64.b64decode(held)[:MAX_TEXT].hex(),
    "arrayValue": lambda held, depth: [_any(one, depth + 1) for one in _list(held, "values")],
    "kvlistValue": lambda held, depth: {
        _text(pair["key"], 256): _any(pair.get("value") or {}, depth + 1)
        for pair in _list(held, "values")
    },
}
