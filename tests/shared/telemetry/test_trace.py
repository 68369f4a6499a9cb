"""Spans: W3C parents as strings, monotonic instants, OTLP out, losses counted and never awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import orjson
import pytest
from aiohttp import web
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from shared.clock import ManualClock, SystemClock
from shared.config import STANDARD_OTLP
from shared.errors import Code, RefusedError
from shared.telemetry import otlp_http, span_queue
from shared.telemetry import trace as module
from shared.telemetry.metrics import Metrics
from shared.telemetry.trace import Tracer, trace_id
from tests.builders import until

PARENT = f"00-{'a1' * 16}-{'b2' * 8}-01"


class Bench:
    """A tracer on a clock moved by hand, and what it exported."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.exporter = InMemorySpanExporter()
        self.tracer = Tracer("decode", "decode-0", self.clock, None, exporter=self.exporter)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_span_continues_the_trace_of_its_parent(bench: Bench) -> None:
    span = bench.tracer.start("decode.job", PARENT, {"baton.attempt": 1})
    bench.clock.advance(1.5)
    span.end()
    found = bench.spans()["decode.job"]
    assert trace_id(span.traceparent) == "a1" * 16 == f"{found.context.trace_id:032x}"
    assert found.parent is not None
    assert f"{found.parent.span_id:016x}" == "b2" * 8
    assert (found.start_time, found.end_time) == (100_000_000_000, 101_500_000_000)
    assert found.resource.attributes["service.name"] == "baton-decode"


@pytest.mark.parametrize("bad", ["", "nonsense", f"00-{'0' * 32}-{'b2' * 8}-01", "00-ü-ü-01"])
def test_a_bad_parent_begins_a_new_trace(bench: Bench, bad: str) -> None:
    with bench.tracer.start("gateway.parse", bad) as span:
        pass
    assert len(trace_id(span.traceparent)) == 32
    assert bench.spans()["gateway.parse"].parent is None
    assert trace_id(bad) == ""


def test_a_fact_becomes_a_span_between_two_instants(bench: Bench) -> None:
    job = bench.tracer.start("decode.job", PARENT)
    context = bench.tracer.record(
        "transfer.pull", job.traceparent, 90.0, 92.5, {"baton.transfer.pages": 4}, (PARENT, "bad")
    )
    job.end()
    found = bench.spans()["transfer.pull"]
    assert (found.start_time, found.end_time) == (90_000_000_000, 92_500_000_000)
    assert found.parent is not None
    assert f"{found.parent.span_id:016x}" == job.traceparent.split("-")[2]
    assert context.split("-")[2] == f"{found.context.span_id:016x}"
    assert [f"{link.context.span_id:016x}" for link in found.links] == ["b2" * 8]


def test_the_flag_not_sampled_is_obeyed(bench: Bench) -> None:
    span = bench.tracer.start("decode.job", PARENT[:-2] + "00")
    assert span.traceparent.endswith("-00")
    assert trace_id(span.traceparent) == "a1" * 16
    bench.tracer.record("transfer.pull", span.traceparent, 1.0, 2.0)
    span.end()
    assert bench.spans() == {}


def test_an_error_marks_the_span_with_its_code_and_no_text(bench: Bench) -> None:
    with pytest.raises(RefusedError), bench.tracer.start("decode.reserve"):
        raise RefusedError("secret text", Code.KV_PAGES_EXHAUSTED)
    found = bench.spans()["decode.reserve"]
    assert found.status.status_code is StatusCode.ERROR
    assert dict(found.attributes or {}) == {"error.type": "kv_pages_exhausted"}
    assert "secret" not in found.to_json()


def test_ending_twice_changes_nothing(bench: Bench) -> None:
    span = bench.tracer.start("decode.job")
    span.event("joined", {"baton.batch.sequences": 3})
    span.set("baton.worker", "decode-0")
    span.end()
    bench.clock.advance(5)
    span.end("internal")
    (found,) = bench.exporter.get_finished_spans()
    assert found.status.status_code is not StatusCode.ERROR
    assert [event.name for event in found.events] == ["joined"]


class Collector:
    """An OTLP receiver that answers as told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.types: set[str] = set()
        self.hang = asyncio.Event()
        self.hang.set()
        self.url = ""
        self.refusals = 0
        """Batches to answer with 503."""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        await self.hang.wait()
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503)
        self.types.add(request.content_type)
        self.names += _names(body, request.content_type == "application/json")
        return web.Response(body=b"", content_type="application/x-protobuf")


def _names(body: bytes, as_json: bool) -> list[str]:
    batch = ExportTraceServiceRequest()
    if as_json:
        ParseDict(orjson.loads(body), batch)
    else:
        batch.ParseFromString(body)
    scopes = [scope for resource in batch.resource_spans for scope in resource.scope_spans]
    return [span.name for scope in scopes for span in scope.spans]


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    site = web.Application()
    site.router.add_post("/v1/traces", made.handle)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    yield made
    made.hang.set()
    await runner.cleanup()


async def test_spans_reach_a_collector_as_otlp_json(collector: Collector) -> None:
    tracer = Tracer("gateway", "gateway-0", SystemClock(), collector.url, Metrics())
    for index in range(700):
        tracer.record(f"span-{index}", PARENT, 1.0, 2.0)
    await tracer.close()
    assert sorted(collector.names) == sorted(f"span-{index}" for index in range(700))


async def test_what_has_ended_can_be_sent_at_once(collector: Collector) -> None:
    tracer = Tracer("gateway", "g", SystemClock(), collector.url, Metrics())
    await tracer.flush()
    for index in range(3):
        tracer.record(f"span-{index}", PARENT, 1.0, 2.0)
    await tracer.flush()
    assert sorted(collector.names) == ["span-0", "span-1", "span-2"]
    await tracer.close()


async def test_the_standard_variables_are_read_when_asked_for(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = collector.url.removesuffix("/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", base)
    tracer = Tracer("gateway", "gateway-0", SystemClock(), STANDARD_OTLP, Metrics())
    tracer.start("chat").end()
    await tracer.close()
    assert collector.names == ["chat"] and collector.types == {"application/x-protobuf"}


async def test_spans_may_go_to_both_and_a_slow_one_holds_up_no_other(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.3)
    slow = Collector()
    slow.hang.clear()
    site = web.Application()
    site.router.add_post("/v1/traces", slow.handle)
    runner = web.AppRunner(site, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", base)
    tracer = Tracer("gateway", "g", SystemClock(), f"{STANDARD_OTLP},{collector.url}", Metrics())
    tracer.start("chat").end()
    await until(lambda: collector.names == ["chat"])
    assert slow.names == []
    slow.hang.set()
    await tracer.close()
    await runner.cleanup()


async def test_a_collector_that_is_busy_is_asked_again(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_http, "_PAUSES_S", (0.01, 0.01))
    collector.refusals = 2
    metrics = Metrics()
    tracer = Tracer("gateway", "g", SystemClock(), collector.url, metrics)
    tracer.start("chat").end()
    await until(lambda: collector.names == ["chat"])
    await tracer.close()
    assert metrics.value("baton_spans_dropped_total", reason="export_failed") == 0


async def test_a_missing_collector_costs_nothing_but_counted_spans(
    capfd: pytest.CaptureFixture[str],
) -> None:
    metrics = Metrics()
    tracer = Tracer("gateway", "g", SystemClock(), "http://127.0.0.1:1/v1/traces", metrics)
    for _ in range(10):
        tracer.start("chat").end()
    started = time.monotonic()
    await tracer.close()
    assert time.monotonic() - started < module.CLOSE_TIMEOUT_S + 1.0
    assert metrics.value("baton_spans_dropped_total", reason="export_failed") == 10
    assert capfd.readouterr().err == ""


async def test_a_hanging_collector_fills_the_queue_and_never_the_caller(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_queue, "QUEUE_SPANS", 600)
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.2)
    collector.hang.clear()
    metrics = Metrics()
    tracer = Tracer("gateway", "g", SystemClock(), collector.url, metrics)
    started = time.monotonic()
    for _ in range(2000):
        tracer.record("chat", "", 1.0, 2.0)
    assert time.monotonic() - started < 2.0
    assert metrics.value("baton_spans_dropped_total", reason="queue_full") == 1400
    started = time.monotonic()
    await tracer.close()
    assert time.monotonic() - started < 1.0
