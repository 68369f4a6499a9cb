"""The relay does what a fault says, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.e2e.chaos_proxy import ChaosProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError):
        while piece := await reader.read(4096):
            writer.write(piece)
    await gone(writer)


async def gone(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def hung_up(streams: Streams) -> bool:
    """The far end has closed or reset the connection."""
    reader, writer = streams
    with suppress(ConnectionResetError):
        async with asyncio.timeout(5):
            assert await reader.read() == b""
    await gone(writer)
    return True


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[ChaosProxy, Streams]]:
    """A proxy before an echo server, and one connection through it."""
    echoes: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        echoes.add(asyncio.create_task(echo(reader, writer), name="echo"))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    async with ChaosProxy(lambda: port).listening() as proxy:
        streams = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield proxy, streams
        await gone(streams[1])
    server.close()
    await asyncio.gather(*echoes)


async def said(streams: Streams, text: bytes) -> bytes:
    streams[1].write(text)
    async with asyncio.timeout(5):
        return await streams[0].readexactly(len(text))


async def test_fair_weather_changes_nothing() -> None:
    async with relayed() as (_, streams):
        assert await said(streams, b"hello" * 10_000) == b"hello" * 10_000


async def test_delay_is_each_way_and_pace_is_kept() -> None:
    async with relayed() as (proxy, streams):
        proxy.upstream.delay_s = proxy.downstream.delay_s = 0.1
        began = time.monotonic()
        assert await said(streams, b"late") == b"late"
        assert time.monotonic() - began >= 0.2
        proxy.heal()
        proxy.upstream.bytes_per_s = 10_000
        began = time.monotonic()
        await said(streams, b"x" * 2_000)
        assert time.monotonic() - began >= 0.2


async def test_deaf_in_one_direction_and_cut_when_healed() -> None:
    async with relayed() as (proxy, streams):
        proxy.downstream.deaf = True
        streams[1].write(b"nobody hears the answer")
        async with asyncio.timeout(5):
            while not proxy.downstream.swallowed_bytes:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.01)
        assert not proxy.upstream.swallowed_bytes
        proxy.heal()
        assert await hung_up(streams)
        again = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await said(again, b"again") == b"again"
        await gone(again[1])


async def test_cut_and_refused_until_healed() -> None:
    async with relayed() as (proxy, streams):
        await said(streams, b"up")
        proxy.cut(refuse=True)
        assert await hung_up(streams)
        assert await hung_up(await asyncio.open_connection("127.0.0.1", proxy.port))
        proxy.heal()
        again = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await said(again, b"again") == b"again"
        await gone(again[1])
