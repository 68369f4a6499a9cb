"""OTLP trace requests in protobuf to plain span rows, within caps; the JSON form is read in
`otlp_json`. Unknown fields are ignored, bad ones refuse the request.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from shared.errors import ClientError, Code

MAX_UNPACKED_BYTES: Final = 16 * 1024 * 1024
MAX_SPANS: Final = 20_000
MAX_TEXT: Final = 4_096


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One span as it is stored: ids in hex, times in nanoseconds, the rest as JSON."""

    trace_id: str
    span_id: str
    parent_id: str
    service: str
    worker: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    error: bool
    attributes: bytes
    events: bytes
    links: bytes
    request: str
    """Value of `baton.request.id` if the span has one."""


def unpack(body: bytes, gzipped: bool) -> bytes:
    """The body without its gzip wrapping. Raises ClientError when it grows beyond the cap."""
    if not gzipped:
        return body
    inflate = zlib.decompressobj(wbits=31)
    try:
        plain = inflate.decompress(body, MAX_UNPACKED_BYTES + 1)
    except zlib.error:
        raise _bad("the body is not gzip") from None
    if len(plain) > MAX_UNPACKED_BYTES:
        raise ClientError("the unpacked body is too large", Code.BODY_TOO_LARGE)
    if not inflate.eof:
        raise _bad("the gzip body is cut short")
    return plain


def bad_body() -> ClientError:
    """What a sender is told whose body cannot be read."""
    return _bad("the body is not an OTLP trace request")


def read_protobuf(body: bytes) -> list[SpanRow]:
    """All spans of a request. Raises ClientError."""
    request = _from_protobuf(body)
    rows: list[SpanRow] = []
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        service = str(resource.get("service.name", "unknown"))[:128]
        worker = str(resource.get("service.instance.id", ""))[:128]
        for scope in group.scope_spans:
            rows += [_row(span, service, worker) for span in scope.spans]
            if len(rows) > MAX_SPANS:
                raise ClientError("too many spans in one request", Code.BODY_TOO_LARGE)
    return rows


def _from_protobuf(body: bytes) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        raise bad_body() from None
    return request


def _row(span: OtlpSpan, service: str, worker: str) -> SpanRow:
    if len(span.trace_id) != 16 or len(span.span_id) != 8 or len(span.parent_span_id) not in (0, 8):
        raise _bad("a span has ids of the wrong length")
    attributes = _attributes(span.attributes)
    return SpanRow(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=service,
        worker=worker,
        name=span.name[:256],
        kind=span.kind,
        start_ns=min(span.start_time_unix_nano, 2**63 - 1),
        end_ns=min(span.end_time_unix_nano, 2**63 - 1),
        error=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=orjson.dumps(attributes),
        events=orjson.dumps([_event(event) for event in span.events]),
        links=orjson.dumps([_link(link) for link in span.links]),
        request=str(attributes.get("baton.request.id", ""))[:64],
    )


def _event(event: OtlpSpan.Event) -> dict[str, object]:
    return {
        "name": event.name[:256],
        "time_ns": event.time_unix_nano,
        "attributes": _attributes(event.attributes),
    }


def _link(link: OtlpSpan.Link) -> dict[str, object]:
    return {
        "trace_id": link.trace_id.hex(),
        "span_id": link.span_id.hex(),
        "attributes": _attributes(link.attributes),
    }


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, object]:
    return {pair.key[:256]: _value(pair.value, 0) for pair in pairs}


def _value(value: AnyValue, depth: int) -> object:
    """A JSON value; what JSON cannot hold becomes text."""
    if depth > 8:
        return None
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value[:MAX_TEXT]
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bytes_value":
            return value.bytes_value[:MAX_TEXT].hex()
        case "array_value":
            return [_value(entry, depth + 1) for entry in value.array_value.values]
        case "kvlist_value":
            return {
                pair.key[:256]: _value(pair.value, depth + 1) for pair in value.kvlist_value.values
            }
        case _:
            return None


def _bad(message: str) -> ClientError:
    return ClientError(message, Code.INVALID_JSON)
