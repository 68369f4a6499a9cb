"""Clients by hand: bytes as they are, slow ones, deaf ones, and one that only asks how fast."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back until the connection closed or the answer was whole."""

    bytes: bytes
    seconds: float

    @property
    def status(self) -> int:
        return int(self.bytes.split(b" ", 2)[1]) if self.bytes else 0

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bytes.partition(b"\r\n\r\n")[2])["error"]
        return found


class Door:
    """Connections to one HTTP port."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._opened = 0

    async def post(self, path: str, body: bytes) -> Reply:
        """One JSON request on its own connection."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await self.talk(head.encode() + body)

    async def talk(self, data: bytes) -> Reply:
        """Send all of it at once; everything until the other side closes, or the answer is
        whole."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(30):
                writer.write(data)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else await reader.read()
        finally:
            writer.close()
        return Reply(head + body, time.monotonic() - began_s)

    async def hold(self, data: bytes) -> Reply:
        """Send it and nothing more; until the other side closes."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self._opened += 1
        writer.write(data)
        return await self._until_closed(reader, writer)

    async def dribble(self, data: bytes) -> Reply:
        """Send it, then a header a byte at a time; until the other side closes."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self._opened += 1
        writer.write(data)

        async def go_on() -> None:
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.2)

        sending = asyncio.create_task(go_on(), name="dribble")
        try:
            return await self._until_closed(reader, writer)
        finally:
            sending.cancel()

    async def connected(self, count: int) -> None:
        """Until so many connections are held."""
        while self._opened < count:  # noqa: ASYNC110 - our own tasks
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def deaf(self, path: str, body: bytes) -> AsyncIterator[None]:
        """A request whose answer nobody reads: its end of the connection takes next to nothing."""
        loop, connection = asyncio.get_running_loop(), socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        connection.setblocking(False)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with connection:
            await loop.sock_connect(connection, (self._host, self._port))
            await loop.sock_sendall(connection, head.encode() + body)
            yield

    async def _until_closed(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Reply:
        began_s = time.monotonic()
        try:
            data = await reader.read()
        except ConnectionError:
            data = b""
        finally:
            writer.close()
        return Reply(data, time.monotonic() - began_s)


@asynccontextmanager
async def longest_answer_s(*urls: str) -> AsyncIterator[Callable[[], float]]:
    """Keep asking each URL meanwhile; afterwards the longest time that one answer took."""
    longest = [0.0]

    async def ask(http: aiohttp.ClientSession, url: str) -> None:
        while True:
            began_s = time.monotonic()
            async with http.get(url) as answer:
                await answer.read()
            longest[0] = max(longest[0], time.monotonic() - began_s)
            await asyncio.sleep(0.01)

    async with aiohttp.ClientSession() as http:
        tasks = [asyncio.create_task(ask(http, url), name="probing") for url in urls]
        try:
            yield lambda: longest[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def metric_sum(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels, in Prometheus text."""
    total = 0.0
    for line in text.splitlines():
        found = re.fullmatch(r"([a-zA-Z0-9_:]+)(?:\{(.*)\})? (\S+)", line)
        if found is None or found[1] != name:
            continue
        if all(f'{key}="{value}"' in (found[2] or "") for key, value in labels.items()):
            total += float(found[3])
    return total
