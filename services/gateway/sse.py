"""Server-sent events on one connection: framing, and a socket that may be slow or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import orjson
from aiohttp import web

from shared.clock import Clock

WRITE_S: Final = 30.0
_LINE_BREAKS: Final = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)
"""Characters that some readers take for the end of a line; JSON may write them escaped."""
_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


class ClientTooSlow(Exception):
    """The socket took nothing for `WRITE_S` seconds."""


def event(payload: Mapping[str, object]) -> bytes:
    """One event: a single line of JSON, whatever characters it holds."""
    line = orjson.dumps(payload)
    if not line.isascii():
        for character, escaped in _LINE_BREAKS:
            line = line.replace(character, escaped)
    return b"data: " + line + b"\n\n"


class EventStream:
    """The answer's stream. Nothing is sent before `open`; every write waits for the socket, so
    at most one piece is held here."""

    def __init__(self, request: web.BaseRequest, headers: Mapping[str, str], clock: Clock) -> None:
        self._request = request
        self._response = web.StreamResponse(headers={**_HEADERS, **headers})
        self._clock = clock
        self.events = 0
        self.sent_bytes = 0
        self.blocked_s = 0.0
        self.first_sent_s: float | None = None
        """When the socket had taken the first events."""

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    @property
    def is_open(self) -> bool:
        return self._response.prepared

    async def open(self) -> None:
        """Commit the status line: 200."""
        if not self.is_open:
            await self._response.prepare(self._request)

    async def send(self, *payloads: Mapping[str, object]) -> None:
        """Write events together. Raises ClientTooSlow, ConnectionError."""
        self.events += len(payloads)
        await self._write(b"".join(event(payload) for payload in payloads))
        if self.first_sent_s is None:
            self.first_sent_s = self._clock.now()

    async def comment(self) -> None:
        """A line that clients skip, so that nobody takes the silence for a dead connection."""
        await self._write(b": keepalive\n\n")

    async def done(self) -> None:
        """The regular end."""
        await self._write(b"data: [DONE]\n\n")
        await self._response.write_eof()

    async def broken(self, payload: Mapping[str, object]) -> None:
        """The irregular end: the error as an event, then the connection closes without the
        terminal chunk, so that no client can take the answer for a complete one."""
        await self.send(payload)
        self.cut()

    def cut(self) -> None:
        """Close the connection once what was written is out; nothing more is written."""
        self._response.force_close()
        transport = self._request.transport
        if transport is not None:
            transport.close()

    def drop(self) -> None:
        """Close the connection at once and forget what the socket did not take."""
        self._response.force_close()
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    async def _write(self, piece: bytes) -> None:
        began_s = self._clock.now()
        self.sent_bytes += len(piece)
        try:
            async with asyncio.timeout(WRITE_S):
                await self._response.write(piece)
        except TimeoutError:
            raise ClientTooSlow from None
        finally:
            self.blocked_s += self._clock.now() - began_s
