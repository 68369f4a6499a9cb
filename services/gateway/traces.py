"""The trace store over HTTP: OTLP in, waterfalls out."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from services.gateway.metrics import GatewayMetrics
from services.gateway.models import json_answer
from services.gateway.otlp import read_spans, unpack
from services.gateway.otlp_export import otlp_json
from services.gateway.routes import Exchange
from services.gateway.span_store import SpanStore
from shared.errors import ClientError, Code, RefusedError

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_SERVICE_PREFIX: Final = "baton-"
_LISTED: Final = 100
_MAX_WAITING: Final = 32


class Traces:
    """Handlers around a store. Parsing and reading happen in a thread of their own."""

    def __init__(self, store: SpanStore, metrics: GatewayMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="traces")
        self._waiting = 0

    async def receive(self, exchange: Exchange) -> web.StreamResponse:
        """POST /v1/traces. 503 when the store cannot keep up: exporters try again."""
        request = exchange.request
        as_json = request.content_type == JSON
        gzipped = request.headers.get("Content-Encoding", "").lower() == "gzip"
        if self._waiting >= _MAX_WAITING:
            raise RefusedError("the trace store is busy", Code.QUEUE_FULL, 1.0)
        self._waiting += 1
        try:
            taken = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._take, exchange.body, gzipped, as_json
            )
        finally:
            self._waiting -= 1
        if not taken:
            raise RefusedError("the trace store is busy", Code.QUEUE_FULL, 1.0)
        answer = b"{}" if as_json else ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type=JSON if as_json else PROTOBUF)

    def _take(self, body: bytes, gzipped: bool, as_json: bool) -> bool:
        return self._store.offer(read_spans(unpack(body, gzipped), as_json))

    async def recent(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/traces."""
        found = await self._read(self._store.recent, _LISTED)
        return json_answer(exchange, {"traces": found})

    async def one(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/traces/{id}: trace id or request id; `?format=otlp` for plain OTLP."""
        spans: list[dict[str, Any]] = await self._read(self._store.trace, exchange.tail)
        if not spans:
            raise ClientError("there is no such trace (yet)", Code.UNKNOWN_REQUEST)
        if exchange.request.rel_url.query.get("format") == "otlp":
            return json_answer(exchange, otlp_json(spans))
        for span in spans:
            span["service"] = span["service"].removeprefix(_SERVICE_PREFIX)
        return json_answer(exchange, {"trace_id": spans[0]["trace_id"], "spans": spans})

    async def _read(self, query: Any, argument: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, query, argument)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._store.close()
