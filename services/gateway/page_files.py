"""The operators' pages: static files, read once, kept in memory, sent with strict headers.

Knows no page's content. What changes comes from the JSON views, not from here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from services.gateway.routes import Exchange
from shared.errors import ClientError, Code

FOLDER: Final = Path(__file__).parent / "pages"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
STRICT: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    content_type: str
    tag: str


class PageFiles:
    """All files of the folder and those below, by name."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            path.name: _File(
                body := path.read_bytes(),
                _TYPES[path.suffix],
                f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"',
            )
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES
        }

    @property
    def size_bytes(self) -> int:
        return sum(len(file.body) for file in self._files.values())

    async def cluster(self, exchange: Exchange) -> web.StreamResponse:
        """GET /"""
        return self._send(exchange, "cluster.html")

    async def traces(self, exchange: Exchange) -> web.StreamResponse:
        """GET /traces"""
        return self._send(exchange, "traces.html")

    async def trace(self, exchange: Exchange) -> web.StreamResponse:
        """GET /traces/{id}: the page reads the id from its address."""
        return self._send(exchange, "trace.html")

    async def runs(self, exchange: Exchange) -> web.StreamResponse:
        """GET /runs and /runs/{id}"""
        return self._send(exchange, "runs.html")

    async def prefixes(self, exchange: Exchange) -> web.StreamResponse:
        """GET /prefixes"""
        return self._send(exchange, "prefixes.html")

    async def file(self, exchange: Exchange) -> web.StreamResponse:
        """GET /pages/{id}: scripts and styles."""
        return self._send(exchange, exchange.tail)

    def _send(self, exchange: Exchange, name: str) -> web.StreamResponse:
        found = self._files.get(name)
        if found is None:
            raise ClientError("there is no such file", Code.NOT_OFFERED)
        headers = {**exchange.headers, **STRICT, "ETag": found.tag, "Cache-Control": "no-cache"}
        if exchange.request.headers.get("If-None-Match") == found.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=found.body, headers={**headers, "Content-Type": found.content_type}
        )
