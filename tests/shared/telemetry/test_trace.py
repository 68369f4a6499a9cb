"""Spans: W3C parents as strings, monotonic instants, OTLP out, losses counted and never awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from shared.clock import ManualClock, SystemClock
from shared.config import STANDARD_OTLP
from shared.errors import Code, RefusedError
from shared.telemetry import span_queue
from shared.telemetry import trace as module
from shared.telemetry.metrics import Metrics
from shared.telemetry.trace import Tracer, trace_id

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
        self.hang = asyncio.Event()
        self.hang.set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        await self.hang.wait()
        batch = ExportTraceServiceRequest.FromString(body)
        for resource in batch.resource_spans:
            for scope in resource.scope_spans:
                self.names += [span.name for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")


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


async def test_spans_reach_a_collector_as_otlp_protobuf(collector: Collector) -> None:
    tracer = Tracer("gateway", "gateway-0", SystemClock(), collector.url, Metrics())
    for index in range(700):
        tracer.record(f"span-{index}", PARENT, 1.0, 2.0)
    await tracer.close()
    assert sorted(collector.names) == sorted(f"span-{index}" for index in range(700))


async def test_the_standard_variables_are_read_when_asked_for(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = collector.url.removesuffix("/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", base)
    tracer = Tracer("gateway", "gateway-0", SystemClock(), STANDARD_OTLP, Metrics())
    tracer.start("chat").end()
    await tracer.close()
    assert collector.names == ["chat"]


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
