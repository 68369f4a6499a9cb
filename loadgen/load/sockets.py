"""Connections to one server, kept open between requests; stamps bytes as they leave and arrive.

One connection carries one exchange at a time. Nothing is parsed before its stamp is taken.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

_MOST_IDLE: Final = 4_096
_CONNECT_S: Final = 30.0


class UrlError(ValueError):
    """A base URL that cannot be asked."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and where under it the API begins."""

    host: str
    port: int
    secure: bool
    prefix: str
    """Path before /v1, without a slash at the end."""

    @property
    def authority(self) -> str:
        """As the Host header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def read_url(url: str) -> Address:
    """Raises UrlError. A trailing /v1 may be there or not."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UrlError(f"{url!r} is not the URL of a server; expected http://HOST:PORT")
    secure = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port or (443 if secure else 80), secure, prefix)


class Listener(Protocol):
    """Who waits for an answer. `lost` ends it; after that nothing more is told."""

    def received(self, piece: bytes, stamp_s: float) -> None: ...

    def lost(self, reason: str) -> None: ...


class Connection(asyncio.Protocol):
    """One socket. `listener` is None while it lies idle."""

    __slots__ = ("_pool", "fresh", "listener", "transport")

    def __init__(self, pool: Sockets) -> None:
        self._pool = pool
        self.listener: Listener | None = None
        self.transport: asyncio.Transport | None = None
        self.fresh = True
        """No request was sent yet: a peer that closes now cannot have meant to rest."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport

    def send(self, request: bytes) -> float:
        """Seconds (monotonic) right before the first byte goes to the socket."""
        stamp_s = time.monotonic()
        if self.transport is not None:
            self.transport.write(request)
        return stamp_s

    def data_received(self, piece: bytes) -> None:
        """Of asyncio."""
        stamp_s = time.monotonic()
        if self.listener is not None:
            self.listener.received(piece, stamp_s)
        else:
            # Bytes that nobody asked for: not a peer to go on with.
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Of asyncio."""
        self._pool.forget(self)
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.lost("connection reset" if error else "connection closed")

    def release(self) -> None:
        """The exchange is over and the connection can carry another."""
        self.listener, self.fresh = None, False
        self._pool.keep(self)

    def abort(self) -> None:
        """Close at once, telling nobody."""
        self.listener = None
        if self.transport is not None:
            self.transport.abort()


class Sockets:
    """Idle connections of one server, and new ones."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._secure = ssl.create_default_context() if address.secure else None
        self.opened = 0

    def idle(self) -> Connection | None:
        """One that can be used at once."""
        while self._idle:
            found = self._idle.pop()
            if found.transport is not None and not found.transport.is_closing():
                return found
        return None

    async def open(self) -> Connection:
        """A new one. Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_S):
            _, made = await loop.create_connection(
                lambda: Connection(self), self.address.host, self.address.port, ssl=self._secure
            )
        self.opened += 1
        return made

    def keep(self, connection: Connection) -> None:
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """All idle ones."""
        for connection in self._idle[:]:
            connection.abort()
        self._idle.clear()
