"""JSON for the operators' pages: the cluster, its prefixes, and results of load runs."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from services.gateway.cluster_watch import ClusterWatch
from services.gateway.models import json_answer
from services.gateway.routes import Exchange
from services.gateway.run_results import RunResults
from services.gateway.side_thread import SideThread
from shared.errors import ClientError, Code
from shared.wire.views import MOST_PREFIXES_SEEN

_MAX_READING: Final = 4


class OperatorViews:
    """Handlers; every answer is bounded."""

    def __init__(self, watch: ClusterWatch, runs_dir: str) -> None:
        self._watch = watch
        self._runs = RunResults(runs_dir) if runs_dir else None
        self._reading = SideThread("run-reader", _MAX_READING, "too many readers at once")

    async def cluster(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/cluster"""
        return json_answer(exchange, await self._watch.cluster())

    async def prefixes(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/prefixes"""
        return json_answer(exchange, await self._watch.prefixes(MOST_PREFIXES_SEEN))

    async def runs(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/runs: off unless a folder is set."""
        if self._runs is None:
            return json_answer(exchange, {"off": True, "problem": "", "runs": []})
        found: dict[str, Any] = {"off": False, "problem": "", "runs": []}
        try:
            found["runs"] = await self._reading.run(self._runs.list)
        except OSError as error:
            found["problem"] = f"the folder of runs cannot be read: {error.strerror}"
        return json_answer(exchange, found)

    async def run(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/runs/{id}; `?with=` another one compares them."""
        runs = self._runs
        if runs is None:
            raise ClientError("the page of runs is off: set runs_dir", Code.NOT_OFFERED)
        name, other = exchange.tail, exchange.request.rel_url.query.get("with")
        if other is None:
            return json_answer(exchange, await self._reading.run(lambda: runs.one(name)))
        return json_answer(exchange, await self._reading.run(lambda: runs.compare(name, other)))

    def close(self) -> None:
        self._reading.close()
