"""Frames over the socket that accompanies a link. Bounded reads, flushed writes, quick close."""

from __future__ import annotations

import asyncio

from shared.dataplane import link_wire as wire

WRITE_S = 5.0
"""A peer that does not take a frame of a few bytes in this time is gone."""


class FrameStream:
    """One connected socket. Raises OSError, IncompleteReadError (the peer left), FrameError,
    TimeoutError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> tuple[wire.Kind, bytes]:
        """The next frame. Waits as long as the peer is silent: callers hold the deadline."""
        kind, length = wire.parse_header(await self._reader.readexactly(wire.HEADER_BYTES))
        return kind, await self._reader.readexactly(length)

    async def expect(self, kind: wire.Kind) -> bytes:
        """The body of the next frame, which must be of this kind."""
        found, body = await self.read()
        if found is not kind:
            raise wire.FrameError("frame is out of order")
        return body

    async def write(self, kind: wire.Kind, body: bytes) -> None:
        self._writer.write(wire.frame(kind, body))
        async with asyncio.timeout(WRITE_S):
            await self._writer.drain()

    def post(self, kind: wire.Kind, body: bytes) -> None:
        """As `write`, but waits for nothing: for few and small frames in answer to the peer's."""
        self._writer.write(wire.frame(kind, body))

    async def finish(self) -> None:
        """Flush and close; for a peer that should still read our last frame."""
        self._writer.close()
        try:
            async with asyncio.timeout(WRITE_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self.abort()

    def abort(self) -> None:
        """Close at once, dropping what was not sent. Does not wait."""
        self._writer.transport.abort()
