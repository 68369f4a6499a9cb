"""The three listeners' tables, and who may use each."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from services.gateway.capture import Capture
from services.gateway.door import Guard
from services.gateway.generation import Endpoints
from services.gateway.models import Models
from services.gateway.operator_views import OperatorViews
from services.gateway.page_files import PageFiles
from services.gateway.routes import Access, Route, Table
from services.gateway.status import Status
from services.gateway.traces import JSON, PROTOBUF, Traces
from shared.errors import ClientError, Code

SMALL_BODY_BYTES: Final = 4 * 1024 * 1024


def public_table(endpoints: Endpoints, models: Models, status: Status, body_bytes: int) -> Table:
    """What clients see."""
    key, anyone = Access.KEY, Access.OPEN
    return Table(
        [
            Route("POST", "/v1/chat/completions", key, endpoints.chat, body_bytes),
            Route("POST", "/v1/completions", key, endpoints.completions, body_bytes),
            Route("GET", "/v1/models", key, models.list),
            Route("GET", "/v1/models/{id}", key, models.one),
            Route("POST", "/tokenize", key, models.tokenize, body_bytes),
            Route("POST", "/v1/tokenize", key, models.tokenize, body_bytes),
            Route("GET", "/version", key, status.version),
            Route("GET", "/metrics", key, status.metrics),
            Route("GET", "/health", anyone, status.live),
            Route("GET", "/livez", anyone, status.live),
            Route("GET", "/ready", anyone, status.ready),
            Route("GET", "/readyz", anyone, status.ready),
        ]
    )


def admin_table(
    status: Status,
    traces: Traces | None,
    views: OperatorViews,
    pages: PageFiles,
    capture: Capture,
) -> Table:
    """What operators see."""
    admin = Access.ADMIN
    routes = [
        Route("GET", "/metrics", admin, status.metrics),
        Route("GET", "/livez", Access.OPEN, status.live),
        Route("GET", "/readyz", Access.OPEN, status.ready),
        Route("GET", "/admin/accounting", admin, status.accounting),
        Route("GET", "/admin/cluster", admin, views.cluster),
        Route("GET", "/admin/prefixes", admin, views.prefixes),
        Route("GET", "/admin/capture", admin, capture.watch),
        Route("GET", "/admin/runs", admin, views.runs),
        Route("GET", "/admin/runs/{id}", admin, views.run),
        Route("GET", "/", admin, pages.cluster),
        Route("GET", "/traces", admin, pages.traces),
        Route("GET", "/traces/{id}", admin, pages.trace),
        Route("GET", "/prefixes", admin, pages.prefixes),
        Route("GET", "/runs", admin, pages.runs),
        Route("GET", "/runs/{id}", admin, pages.runs),
        Route("GET", "/pages/{id}", admin, pages.file),
    ]
    if traces is not None:
        routes.append(Route("GET", "/admin/traces", admin, traces.search))
        routes.append(Route("GET", "/admin/logs/{id}", admin, traces.logs))
        routes.append(Route("GET", "/admin/traces/{id}", admin, traces.one))
    return Table(routes)


def traces_table(traces: Traces) -> Table:
    """Where spans arrive."""
    media = (PROTOBUF, JSON)
    return Table(
        [
            Route(
                "POST",
                "/v1/traces",
                Access.OPEN,
                traces.receive,
                SMALL_BODY_BYTES,
                media,
                ("gzip",),
            )
        ]
    )


def anyone(request: web.BaseRequest) -> None:
    """No further condition."""


def operators_only(bind_host: str) -> Guard:
    """Pages of other sites must not reach this listener through a browser on this machine: the
    Host must be ours, and the request must not come from another site."""
    names = {bind_host, "localhost", "127.0.0.1", "[::1]"}

    def guard(request: web.BaseRequest) -> None:
        host = request.headers.get("Host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        foreign = request.headers.get("Sec-Fetch-Site", "none") in ("cross-site", "same-site")
        if name not in names or foreign:
            raise ClientError("this listener is for operators on this host", Code.NOT_OFFERED)

    return guard
