"""OTLP's JSON read by hand: the same rows as from protobuf, and nothing but a refusal for what is
no trace request.
"""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from services.gateway.otlp import MAX_SPANS, read_protobuf
from services.gateway.otlp_json import read_json
from shared.clock import ManualClock
from shared.errors import ClientError, Code
from shared.telemetry.otlp_json import request_body
from shared.telemetry.trace import Kind, Tracer

GOOD = {"traceId": "AB" * 16, "spanId": "cd" * 8, "name": "x"}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
fields = st.sampled_from(
    ("traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "attributes",
     "events", "links", "status", "key", "value", "stringValue", "intValue", "arrayValue")
)  # fmt: skip


def request(*spans: object) -> bytes:
    return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(fields, values | st.dictionaries(fields, values), max_size=6))
def test_whatever_comes_is_read_or_refused(said: dict[str, Any]) -> None:
    for span in (said, GOOD | said):
        try:
            body = request(span)
        except orjson.JSONEncodeError:
            return  # not even JSON
        try:
            rows = read_json(body)
        except ClientError as error:
            assert error.code is Code.INVALID_JSON
            continue
        assert len(rows) == 1 and len(rows[0].trace_id) == 32


def test_values_of_every_kind_are_read_as_from_protobuf() -> None:
    held = {
        "text": AnyValue(string_value="t"),
        "long": AnyValue(string_value="x" * 9_000),
        "yes": AnyValue(bool_value=True),
        "least": AnyValue(int_value=-(2**63)),
        "half": AnyValue(double_value=0.5),
        "bytes": AnyValue(bytes_value=b"\x01\xff"),
        "list": AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1), AnyValue()])),
        "map": AnyValue(
            kvlist_value=KeyValueList(values=[KeyValue(key="k", value=AnyValue(string_value="v"))])
        ),
    }
    pairs = [KeyValue(key=key, value=value) for key, value in held.items()]
    made = Span(trace_id=b"\xab" * 16, span_id=b"\xcd" * 8, name="x", attributes=pairs)
    whole = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[made])])]
    )
    written: list[dict[str, Any]] = [
        {"key": "text", "value": {"stringValue": "t"}},
        {"key": "long", "value": {"stringValue": "x" * 9_000}},
        {"key": "yes", "value": {"boolValue": True}},
        {"key": "least", "value": {"intValue": str(-(2**63))}},
        {"key": "half", "value": {"doubleValue": 0.5}},
        {"key": "bytes", "value": {"bytesValue": base64.b64encode(b"\x01\xff").decode()}},
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": 1}, {}]}}},
        {
            "key": "map",
            "value": {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}},
        },
    ]
    (ours,) = read_json(request(GOOD | {"attributes": written}))
    (theirs,) = read_protobuf(whole.SerializeToString())
    assert orjson.loads(ours.attributes) == orjson.loads(theirs.attributes)
    assert (ours.trace_id, ours.span_id, ours.name) == (theirs.trace_id, theirs.span_id, "x")


def test_what_our_tracer_sends_is_what_the_store_reads() -> None:
    clock, ended = ManualClock(5.0), list[Any]()
    tracer = Tracer("decode", "decode-0", clock, None)
    tracer._ended = ended.append
    root = tracer.start("chat", "", {"baton.request.id": "r1"}, kind=Kind.SERVER)
    tracer.record(
        "transfer.pull", root.traceparent, 6.0, 7.5,
        {"rate": float("inf"), "pages": 3, "error.type": "stale", "reasons": ["a", "b"]},
        (root.traceparent,), events=((6.5, "stalled"),),
    )  # fmt: skip
    root.end()
    pull, chat = read_json(request_body(ended, {"service.name": "s", "service.instance.id": "w"}))
    assert (pull.service, pull.worker, pull.parent_id) == ("s", "w", chat.span_id)
    assert (pull.start_ns, pull.end_ns, pull.error) == (6_000_000_000, 7_500_000_000, True)
    assert orjson.loads(pull.attributes)["reasons"] == ["a", "b"]
    assert orjson.loads(pull.attributes)["rate"] is None
    assert orjson.loads(pull.events)[0]["time_ns"] == 6_500_000_000
    assert orjson.loads(pull.links)[0]["span_id"] == chat.span_id
    assert (chat.kind, chat.request, chat.parent_id) == (2, "r1", "")


def test_too_many_spans_are_too_large() -> None:
    with pytest.raises(ClientError) as caught:
        read_json(request(*[GOOD] * (MAX_SPANS + 1)))
    assert caught.value.code is Code.BODY_TOO_LARGE
