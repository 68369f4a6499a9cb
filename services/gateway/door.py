"""One HTTP listener: connections, head deadline, routing, and an error object for every error,
also for those that the HTTP parser finds.

Owns no route's meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import HttpVersion11, web
from aiohttp.http_parser import HttpRequestParser
from aiohttp.web_protocol import RequestHandler
from prometheus_client import Counter

from services.gateway.body import label, read_body
from services.gateway.refusals import SERVER, Refusal, refusal_of
from services.gateway.request_ids import new_request_id
from services.gateway.routes import Exchange, Table
from shared.clock import Clock
from shared.errors import BatonError, ClientError, Code, StartupError
from shared.telemetry.log import Log

HEAD_S: Final = 10.0
KEEPALIVE_S: Final = 75.0
LINGER_S: Final = 1.0
_LATE_HEAD: Final = b"HTTP/1.1 408 Request Timeout\r\n"

Guard = Callable[[web.BaseRequest], None]
"""Raises ClientError for a request that this listener must not serve."""


class Door:
    """A listener with its table of routes."""

    def __init__(
        self, table: Table, clock: Clock, log: Log, refusals: Counter, guard: Guard
    ) -> None:
        """`refusals` counts by status and reason."""
        if HttpRequestParser.__module__ != "aiohttp._http_parser":
            raise StartupError("aiohttp has no C parser here: install its binary wheel")
        self._table = table
        self._clock = clock
        self._log = log
        self._refusals = refusals
        self._guard = guard
        self._server: asyncio.Server | None = None
        self._connections: _Connections | None = None
        self.head_s = HEAD_S
        self.port = 0

    async def listen(self, host: str, port: int, name: str) -> None:
        """Bind and serve. Raises StartupError when the port is taken."""
        self._connections = _Connections(self)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connections, host, port, backlog=1024)
        except OSError as error:
            raise StartupError(
                f"cannot listen on {host}:{port} ({error.strerror or 'address not usable'}): "
                f"stop what uses it or choose another {name}"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self, timeout_s: float = 1.0) -> None:
        """Stop listening; running handlers get `timeout_s`, then they are cancelled."""
        if self._server is not None:
            self._server.close()
        if self._connections is not None:
            self._connections.pre_shutdown()
            await self._connections.shutdown(timeout_s)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; never raises but for a cancellation."""
        started_s = self._clock.now()
        request_id = new_request_id(self._clock)
        headers = {
            "Server": SERVER,
            "x-baton-request-id": request_id,
            "x-request-id": label(request.headers.get("X-Request-Id")) or request_id,
        }
        exchange = Exchange(request, request_id, started_s, "", headers)
        try:
            return await self._dispatch(exchange)
        except BatonError as error:
            return self.refuse(exchange, refusal_of(error))
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - one request must not end the listener
            self._log.failure("gateway.request_failed", error, request=request_id)
            return self.refuse(exchange, Refusal(Code.INTERNAL, "internal error"))

    async def _dispatch(self, exchange: Exchange) -> web.StreamResponse:
        request = exchange.request
        if request.version != HttpVersion11:
            raise ClientError("only HTTP/1.1 is spoken here", Code.INVALID_PARAMETER)
        self._guard(request)
        route, exchange.tail = self._table.find(request.method, request.path)
        if route.body_bytes:
            exchange.body = await read_body(request, route)
        return await route.handler(exchange)

    def refuse(self, exchange: Exchange, refusal: Refusal) -> web.Response:
        """The error object, counted."""
        self._refusals.labels(str(refusal.status), refusal.code.value).inc()
        extra = dict(exchange.headers)
        if refusal.code is Code.METHOD_NOT_ALLOWED:
            extra["Allow"] = self._table.methods(exchange.request.path)
        return refusal.response(exchange.id, extra)

    def refuse_unparsed(self, status: int) -> web.Response:
        """The error object for bytes that are not a request, or too large a head."""
        code = Code.INVALID_PARAMETER if status < 500 else Code.INTERNAL
        message = "this is not a well-formed HTTP request" if status < 500 else "internal error"
        refusal = Refusal(code, message)
        self._refusals.labels(str(refusal.status), code.value).inc()
        answer = refusal.response(new_request_id(self._clock))
        answer.force_close()
        return answer

    def late_head(self) -> bytes:
        """A whole 408 answer, for a connection that has no request object yet."""
        refusal = Refusal(Code.REQUEST_TIMEOUT, "the request head did not arrive in time")
        self._refusals.labels(str(refusal.status), refusal.code.value).inc()
        answer = refusal.response(new_request_id(self._clock))
        body = answer.body if isinstance(answer.body, bytes) else b""
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return _LATE_HEAD + head.encode() + b"Connection: close\r\n\r\n" + body


class _Connections(web.Server):
    """Makes our protocol for each connection. A client that goes away cancels its handler."""

    def __init__(self, door: Door) -> None:
        super().__init__(door.handle, handler_cancellation=True)
        self.door = door

    def __call__(self) -> RequestHandler:
        return _Connection(self)


class _Connection(RequestHandler):
    """One connection: aiohttp's, with a deadline for request heads and our error object."""

    def __init__(self, connections: _Connections) -> None:
        super().__init__(
            connections,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEPALIVE_S,
            access_log=None,  # type: ignore[arg-type]
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self._door = connections.door
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._arm(answer=False)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _received(self, data: bytes) -> None:
        before = self._request_count
        super().data_received(data)
        if self._request_count != before:
            self._disarm()
        elif self._idle:
            self._arm(answer=True)

    data_received = _received  # the name that asyncio calls

    @property
    def _idle(self) -> bool:
        """The next request is waited for: what arrives belongs to its head."""
        return self._waiter is not None and not self._waiter.done()

    def _arm(self, *, answer: bool) -> None:
        """From the first byte of a head its deadline runs; more bytes do not move it."""
        loop = asyncio.get_running_loop()
        if self._head_timer is None:
            self._head_timer = loop.call_later(self._door.head_s, self._late, answer)
        elif answer and not self._head_answered:
            due_s = self._head_timer.when()
            self._head_timer.cancel()
            self._head_timer = loop.call_at(due_s, self._late, answer)
        self._head_answered = answer

    _head_answered = False

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self, answer: bool) -> None:
        self._head_timer = None
        if not self._idle:
            return
        if answer and self.transport is not None:
            self.transport.write(self._door.late_head())
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What the parser or aiohttp itself refuses, in our words and quoting nothing."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was already begun")
        return self._door.refuse_unparsed(status)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """aiohttp's text quotes the client: the fact is counted by `handle_error`."""
