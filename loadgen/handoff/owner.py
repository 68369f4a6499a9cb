"""A child process that owns the bytes of one contender: prints where, serves until stdin ends.

Usage: python -m loadgen.handoff.owner plane|raw|tcp TRANSPORT
"""

from __future__ import annotations

import asyncio
import socket
import sys

from loadgen.handoff import raw
from loadgen.handoff.contenders import WANT
from loadgen.handoff.pages import BenchGuard, BenchPages, pattern
from shared.dataplane.link_wire import Lane
from shared.dataplane.ucx import UcxPlane, UcxSettings


async def serve_plane(transport: str) -> None:
    plane = UcxPlane(UcxSettings(transport=transport))
    plane.register(BenchPages(pattern()), BenchGuard())
    await plane.start()
    print(plane.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await plane.close()


async def serve_tcp() -> None:
    source = memoryview(pattern().data)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                begin, size_bytes = WANT.unpack(await reader.readexactly(WANT.size))
                writer.write(source[begin : begin + size_bytes])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


def serve_raw(transport: str) -> None:
    lane = Lane.TCP if transport == "tcp" else Lane.SHM
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        peer, _ = server.accept()
    with peer:
        raw.serve(pattern(), peer, lane)


if __name__ == "__main__":
    match sys.argv[1]:
        case "plane":
            asyncio.run(serve_plane(sys.argv[2]))
        case "raw":
            serve_raw(sys.argv[2])
        case _:
            asyncio.run(serve_tcp())
