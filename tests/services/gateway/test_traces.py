"""Spans in over OTLP, out as a waterfall; caps; a store that fails costs no request anything."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from services.gateway.otlp import MAX_UNPACKED_BYTES, SpanRow, read_protobuf, unpack
from services.gateway.otlp_export import otlp_json
from services.gateway.otlp_json import read_json
from services.gateway.span_store import Retention, SpanStore
from services.gateway.trace_search import Search
from shared.clock import SystemClock
from shared.errors import ClientError, Code, StartupError
from tests.builders import until
from tests.services.gateway.rig import Rig, rig

TRACE = bytes(range(16))


def attribute(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def request(spans: int = 2, trace: bytes = TRACE, size: int = 3) -> ExportTraceServiceRequest:
    made = [
        Span(
            trace_id=trace,
            span_id=(n + 1).to_bytes(8, "big"),
            parent_span_id=b"" if n == 0 else (1).to_bytes(8, "big"),
            name=f"span-{n}",
            kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=1_000 + n,
            end_time_unix_nano=2_000 + n,
            attributes=[
                attribute("baton.request.id", "req-1" if n == 0 else ""),
                attribute("note", "x" * size),
                KeyValue(key="count", value=AnyValue(int_value=7)),
            ],
            events=[Span.Event(name="joined", time_unix_nano=5)],
            links=[Span.Link(trace_id=trace, span_id=b"\x01" * 8)],
            status=Status(code=Status.STATUS_CODE_ERROR if n else Status.STATUS_CODE_UNSET),
        )
        for n in range(spans)
    ]
    resource = ResourceSpans(scope_spans=[ScopeSpans(spans=made)])
    resource.resource.attributes.append(attribute("service.name", "baton-decode"))
    resource.resource.attributes.append(attribute("service.instance.id", "decode-0"))
    return ExportTraceServiceRequest(resource_spans=[resource])


def store_at(path: Path, max_bytes: int = 1 << 30, max_age_s: float = 3600.0) -> SpanStore:
    return SpanStore(str(path), Retention(max_bytes, max_age_s), SystemClock(), lambda *_: None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SpanStore]:
    made = store_at(tmp_path / "deep" / "t.sqlite")
    made.start()
    yield made
    made.close()


def test_protobuf_and_json_give_the_same_rows() -> None:
    rows = read_protobuf(request().SerializeToString())
    spans = [
        {
            "trace_id": row.trace_id,
            "span_id": row.span_id,
            "parent_id": row.parent_id,
            "service": row.service,
            "worker": row.worker,
            "name": row.name,
            "kind": row.kind,
            "start_ns": row.start_ns,
            "end_ns": row.end_ns,
            "error": row.error,
            **{key: orjson.loads(getattr(row, key)) for key in ("attributes", "events", "links")},
        }
        for row in rows
    ]
    exported = otlp_json(spans)
    exported["future"] = {"unknown": 1}
    assert read_json(orjson.dumps(exported)) == rows
    assert rows[0].trace_id == TRACE.hex() and rows[0].request == "req-1" and rows[1].error


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"resourceSpans": 5}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "00"}]}]}]}',
        orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": 5}]}]}]}),
    ],
)
def test_bad_json_is_refused(body: bytes) -> None:
    with pytest.raises(ClientError):
        read_json(body)


def test_bad_protobuf_and_gzip_are_refused() -> None:
    with pytest.raises(ClientError):
        read_protobuf(b"\xff\xff\xff")
    with pytest.raises(ClientError):
        unpack(b"not gzip", gzipped=True)
    with pytest.raises(ClientError):
        unpack(gzip.compress(b"x" * 100)[:-9], gzipped=True)
    bomb = gzip.compress(b"\0" * (MAX_UNPACKED_BYTES + 1))
    with pytest.raises(ClientError) as caught:
        unpack(bomb, gzipped=True)
    assert caught.value.code is Code.BODY_TOO_LARGE


def rows(count: int, trace: int, size: int = 3) -> list[SpanRow]:
    return read_protobuf(request(count, trace.to_bytes(16, "big"), size).SerializeToString())


async def test_spans_are_found_by_trace_and_by_request(store: SpanStore) -> None:
    assert store.offer(read_protobuf(request(3).SerializeToString()))
    assert store.offer(read_protobuf(request(3).SerializeToString()))
    await until(lambda: len(store.trace(TRACE.hex())) == 3)
    found = store.trace("req-1")
    assert [span["name"] for span in found] == ["span-0", "span-1", "span-2"]
    assert found[0]["attributes"]["count"] == 7 and found[0]["events"][0]["name"] == "joined"
    assert found[0]["service"] == "baton-decode" and found[0]["worker"] == "decode-0"
    assert store.trace("") == [] and store.trace("nobody") == []
    (listed,) = store.search(Search())
    assert (listed["root"], listed["request"], listed["spans"]) == ("span-0", "req-1", 3)
    assert listed["workers"] == ["decode-0"]


async def test_the_store_stays_below_its_size(tmp_path: Path) -> None:
    store = store_at(tmp_path / "t.sqlite", 2_000_000)
    store.start()
    for trace in range(1, 41):
        assert store.offer(rows(50, trace, 3000))
    await until(lambda: store._waiting == 0)
    store._next_prune_s = 0.0
    assert store.offer(rows(1, 99))
    await until(lambda: store._waiting == 0)
    assert store.size_bytes() < 2_500_000
    assert store.trace((99).to_bytes(16, "big").hex())
    store.close()


async def test_old_traces_go(tmp_path: Path) -> None:
    store = store_at(tmp_path / "t.sqlite", max_age_s=-1.0)
    store.start()
    assert store.offer(rows(1, 1))
    await until(lambda: store._waiting == 0)
    assert store.search(Search()) == []
    store.close()


def test_a_full_queue_takes_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path / "t.sqlite")
    batch = rows(1, 1) * 30_000
    assert store.offer(batch) and not store.offer(batch)


def test_a_store_that_cannot_be_opened_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"this is no folder")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "below", tmp_path / "folder"):
        with pytest.raises(StartupError):
            store_at(path).start()


async def post_traces(gateway: Rig, body: bytes, **headers: str) -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{gateway.app.ports['traces_port']}/v1/traces"
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.http.post(url, data=body, headers=fields) as answer:
        return answer.status, await answer.read()


async def test_over_http(tmp_path: Path) -> None:
    async with rig(tmp_path) as gateway:
        protobuf = request(2).SerializeToString()
        kind = "application/x-protobuf"
        assert await post_traces(gateway, protobuf, Content_Type=kind) == (200, b"")
        packed = gzip.compress(protobuf)
        status, _ = await post_traces(gateway, packed, Content_Type=kind, Content_Encoding="gzip")
        assert status == 200
        assert await post_traces(gateway, b"{}", Content_Type="application/json") == (200, b"{}")
        status, body = await post_traces(gateway, b"\xff\xff", Content_Type=kind)
        assert status == 400 and orjson.loads(body)["error"]["code"] == "invalid_json"
        status, _ = await post_traces(gateway, b"{}", Content_Type="text/plain")
        assert status == 415

        async def stored() -> dict[str, Any]:
            async with gateway.http.get(f"{gateway.admin_url}/admin/traces/{TRACE.hex()}") as got:
                return dict(await got.json()) if got.status == 200 else {}

        found: dict[str, Any] = {}
        while not found:
            found = await stored()
        assert found["trace_id"] == TRACE.hex()
        assert {span["service"] for span in found["spans"]} == {"decode"}
        url = f"{gateway.admin_url}/admin/traces"
        async with gateway.http.get(url) as got:
            assert (await got.json())["traces"][0]["spans"] == 2
        async with gateway.http.get(f"{url}/req-1?format=otlp") as got:
            document = await got.json()
        span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
        assert span["traceId"] == TRACE.hex() and span["startTimeUnixNano"] == "1000"
        async with gateway.http.get(f"{url}/nobody") as got:
            assert got.status == 404


def test_ids_in_json_are_hex_not_base64() -> None:
    document = {
        "resourceSpans": [
            {"scopeSpans": [{"spans": [{"traceId": TRACE.hex(), "spanId": "01" * 8, "name": "a"}]}]}
        ]
    }
    (row,) = read_json(orjson.dumps(document))
    assert row.trace_id == TRACE.hex() != base64.b64encode(TRACE).decode()
