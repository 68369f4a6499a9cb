"""Three ways to pull bytes from another process, asked the same: our plane, the bare UCX library
over the same transport, and asyncio's TCP streams.

Each keeps `at_once` transfers of one size on their way into successive places of a region.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, Protocol

from loadgen.handoff.pages import PAGE_BYTES, TICKET, BenchGuard, BenchPages, Bytes
from loadgen.handoff.raw import RawReader
from shared.dataplane.plane import PageRead
from shared.dataplane.ucx import UcxPlane, UcxSettings
from shared.ids import Generation, PageId

WANT: Final = struct.Struct(">QQ")
"""Offset and size of a transfer over TCP."""
_READ_S: Final = 30.0


class Contender(Protocol):
    """The reader's side; the owner is a process of its own."""

    name: str

    async def pull(self, size_bytes: int, count: int, at_once: int) -> None:
        """`count` transfers; returns when all have landed."""
        ...

    async def close(self) -> None: ...


class PlaneContender:
    """Reads of neighbouring pages over the data plane that the services use."""

    name = "plane"

    def __init__(self, plane: UcxPlane, owner: str) -> None:
        self._plane = plane
        self._owner = owner
        self._wanted: dict[tuple[int, int], list[list[PageRead]]] = {}
        """What is read by size and number at once: whoever asks has it before the clock runs."""

    @classmethod
    async def open(cls, target: Bytes, owner: str, transport: str) -> PlaneContender:
        plane = UcxPlane(UcxSettings(transport=transport))
        plane.register(BenchPages(target), BenchGuard())
        await plane.start()
        return cls(plane, owner)

    @property
    def transport(self) -> str:
        return self._plane.transport

    async def pull(self, size_bytes: int, count: int, at_once: int) -> None:
        if (size_bytes, at_once) not in self._wanted:
            self._wanted[size_bytes, at_once] = _successive(size_bytes // PAGE_BYTES, at_once)
        reads = self._wanted[size_bytes, at_once]
        turns = iter(range(count))

        async def lane() -> None:
            for turn in turns:
                await self._plane.read(self._owner, TICKET, reads[turn % at_once], _READ_S)

        async with asyncio.TaskGroup() as group:
            for number in range(at_once):
                group.create_task(lane(), name=f"lane-{number}")

    async def close(self) -> None:
        await self._plane.close()


def _successive(pages: int, places: int) -> list[list[PageRead]]:
    """One read for each of so many places, side by side."""
    return [
        [
            PageRead(PageId(page), Generation(0), PageId(page))
            for page in range(place * pages, (place + 1) * pages)
        ]
        for place in range(places)
    ]


class RawContender:
    """The least code that pulls over UCX, with the data plane's settings of the library."""

    name = "raw"

    def __init__(self, reader: RawReader) -> None:
        self._reader = reader

    async def pull(self, size_bytes: int, count: int, at_once: int) -> None:
        """Blocks the loop: nothing else is measured meanwhile."""
        self._reader.pull(size_bytes, count, at_once)

    async def close(self) -> None:
        self._reader.close()


class TcpContender:
    """asyncio streams; bytes are copied into their place, as pages must be."""

    name = "tcp"

    def __init__(
        self, target: Bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._target = memoryview(target.data)
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, target: Bytes, port: int) -> TcpContender:
        connection = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        return cls(target, *connection)

    async def pull(self, size_bytes: int, count: int, at_once: int) -> None:
        for turn in range(min(at_once, count)):
            self._want(turn % at_once, size_bytes)
        for turn in range(count):
            place = turn % at_once
            data = await self._reader.readexactly(size_bytes)
            self._target[place * size_bytes : (place + 1) * size_bytes] = data
            if turn + at_once < count:
                self._want(place, size_bytes)
                await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()

    def _want(self, place: int, size_bytes: int) -> None:
        self._writer.write(WANT.pack(place * size_bytes, size_bytes))
