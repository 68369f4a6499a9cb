"""The trace store over HTTP: OTLP in, searches and waterfalls out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from services.gateway.critical_path import critical_path
from services.gateway.lost_spans import with_stand_ins
from services.gateway.models import json_answer
from services.gateway.otlp import read_protobuf, unpack
from services.gateway.otlp_export import otlp_json
from services.gateway.otlp_json import read_json
from services.gateway.routes import Exchange
from services.gateway.side_thread import SideThread
from services.gateway.span_store import SpanStore
from services.gateway.trace_logs import find_lines
from services.gateway.trace_search import read_search
from services.gateway.ttft_split import split_ttft
from services.gateway.what_if import what_if_colocated
from shared.errors import ClientError, Code, RefusedError
from shared.wire.views import WorkerSeen

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
SHOWN_SPANS: Final = 2_000
_SERVICE_PREFIX: Final = "baton-"
_MAX_WAITING: Final = 32
_MAX_READING: Final = 8
_BUSY: Final = "the trace store is busy"


class Traces:
    """Handlers around a store. Parsing happens in one thread, reading in another, so that a slow
    search holds up no span."""

    def __init__(
        self, store: SpanStore, worker: Callable[[str], WorkerSeen | None], run_dir: str
    ) -> None:
        """`worker` tells what is known of a worker by now; logs lie in `run_dir`."""
        self._store = store
        self._worker = worker
        self._run_dir = run_dir
        self._parsing = SideThread("traces", _MAX_WAITING, _BUSY)
        self._reading = SideThread("trace-reader", _MAX_READING, "too many searches at once")

    async def receive(self, exchange: Exchange) -> web.StreamResponse:
        """POST /v1/traces. 503 when the store cannot keep up: exporters try again."""
        request = exchange.request
        as_json = request.content_type == JSON
        gzipped = request.headers.get("Content-Encoding", "").lower() == "gzip"
        if not await self._parsing.run(lambda: self._take(exchange.body, gzipped, as_json)):
            raise RefusedError(_BUSY, Code.QUEUE_FULL, 1.0)
        answer = b"{}" if as_json else ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type=JSON if as_json else PROTOBUF)

    def _take(self, body: bytes, gzipped: bool, as_json: bool) -> bool:
        plain = unpack(body, gzipped)
        return self._store.offer(read_json(plain) if as_json else read_protobuf(plain))

    async def search(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/traces; what may be asked stands in `trace_search`."""
        search = read_search(exchange.request.rel_url.query)
        found = await self._reading.run(lambda: self._store.search(search))
        return json_answer(exchange, {"traces": found, "limit": search.limit})

    async def one(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/traces/{id}: trace id or request id; `?format=otlp` for plain OTLP."""
        name = exchange.tail
        spans = await self._reading.run(lambda: with_stand_ins(self._store.trace(name)))
        if not spans:
            raise ClientError("there is no such trace (yet)", Code.UNKNOWN_REQUEST)
        if exchange.request.rel_url.query.get("format") == "otlp":
            return json_answer(exchange, otlp_json(spans))
        trace_id = str(spans[0]["trace_id"])
        summary = await self._reading.run(lambda: self._store.summary(trace_id))
        shown = await self._reading.run(lambda: self._explain(spans, summary))
        return json_answer(exchange, {"trace_id": trace_id, "summary": summary, **shown})

    async def logs(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/logs/{id}: lines of local log files that name this trace or its request."""
        name = exchange.tail
        if not name.replace("-", "").isalnum() or not 8 <= len(name) <= 64:
            raise ClientError("this is no id of a trace or a request", param="id")
        summary = await self._reading.run(lambda: self._store.summary(name))
        names = (name, "" if summary is None else str(summary["request"]))
        return json_answer(
            exchange, await self._reading.run(lambda: find_lines(self._run_dir, names))
        )

    def _explain(
        self, spans: list[dict[str, Any]], summary: dict[str, Any] | None
    ) -> dict[str, Any]:
        split, path = split_ttft(spans), critical_path(spans[:SHOWN_SPANS])
        decodes = [span["worker"] for span in spans if span["name"] == "decode.generate"]
        seen = self._worker(decodes[-1]) if decodes else None
        guess = None
        if split is not None and seen is not None and summary is not None:
            guess = what_if_colocated(spans, split, int(summary["prompt_tokens"]), seen)
        for span in spans:
            span["service"] = span["service"].removeprefix(_SERVICE_PREFIX)
        return {
            "spans": spans[:SHOWN_SPANS],
            "spans_total": len(spans),
            "split": split and asdict(split),
            "critical": [asdict(segment) for segment in path],
            "what_if": guess and asdict(guess),
        }

    def close(self) -> None:
        self._parsing.close()
        self._reading.close()
        self._store.close()
