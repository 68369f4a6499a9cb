"""Health, readiness, version, metrics and accounting: answers from memory, never from work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from aiohttp import web
from prometheus_client import Metric

from services.gateway.models import json_answer
from services.gateway.routes import Exchange
from shared.errors import Code, RefusedError
from shared.telemetry.metrics import Metrics

VERSION: Final = "0.1.0"


class Status:
    """`obstacle` (to placing a request) and `accounting` are asked at each request."""

    def __init__(
        self,
        metrics: Metrics,
        obstacle: Callable[[], Code | None],
        accounting: Callable[[], Mapping[str, object]],
        more: Callable[[], Awaitable[Iterable[Metric]]],
    ) -> None:
        """`more`: figures under further names."""
        self._more = more
        self._metrics = metrics
        self._obstacle = obstacle
        self._accounting = accounting

    async def live(self, exchange: Exchange) -> web.StreamResponse:
        return json_answer(exchange, {"status": "ok"})

    async def ready(self, exchange: Exchange) -> web.StreamResponse:
        """503 with the reason while a request could not be placed."""
        if (obstacle := self._obstacle()) is not None:
            raise RefusedError("no request could be placed now", obstacle, 1.0)
        return json_answer(exchange, {"status": "ready"})

    async def version(self, exchange: Exchange) -> web.StreamResponse:
        return json_answer(exchange, {"version": VERSION})

    async def accounting(self, exchange: Exchange) -> web.StreamResponse:
        return json_answer(exchange, self._accounting())

    async def metrics(self, exchange: Exchange) -> web.StreamResponse:
        """In OpenMetrics, with exemplars, for whoever accepts it."""
        accept = exchange.request.headers.get("Accept", "")
        body, kind = self._metrics.render(accept, await self._more())
        return web.Response(body=body, headers={**exchange.headers, "Content-Type": kind})
