"""A TCP relay on loopback that can be slow, narrow, deaf in one direction, or cut.

Stands between a service and NATS (or any other address). Bytes that it swallows leave the stream
broken, so `heal` cuts the connections that lost some: the client comes back on a whole one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

_PIECE_BYTES: Final = 16_384
_WAITING_PIECES: Final = 256
_CONNECT_S: Final = 5.0


@dataclass(slots=True)
class Weather:
    """Of one direction; changed while connections are open."""

    delay_s: float = 0.0
    """From the arrival of a byte to its departure."""
    bytes_per_s: float = 0.0
    """0: as fast as it goes."""
    deaf: bool = False
    """Everything is taken in and nothing passed on."""
    swallowed_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Connection:
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    broken: bool = False

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class ChaosProxy:
    """`upstream`: from whoever connects to the target; `downstream`: back. The target's port is
    asked for at each connection, so it may be known late and change."""

    def __init__(self, target_port: Callable[[], int]) -> None:
        self.upstream = Weather()
        self.downstream = Weather()
        self.refusing = False
        self.accepted = 0
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[ChaosProxy]:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield self
        finally:
            self._server.close()
            self.cut()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        if self._server is None:
            raise RuntimeError("the proxy does not listen yet")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every connection; with `refuse` new ones too, until `heal`."""
        self.refusing = refuse
        for connection in list(self._open):
            connection.abort()

    def heal(self) -> None:
        """Good weather; connections that lost bytes are cut."""
        self.refusing = False
        for weather in (self.upstream, self.downstream):
            weather.delay_s, weather.bytes_per_s, weather.deaf = 0.0, 0.0, False
        for connection in list(self._open):
            if connection.broken:
                connection.abort()

    # -- inside ------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="proxied")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection([writer])
        self._open.add(connection)
        self.accepted += 1
        try:
            if self.refusing:
                return
            async with asyncio.timeout(_CONNECT_S):
                target = await asyncio.open_connection("127.0.0.1", self._target_port())
            connection.writers.append(target[1])
            async with asyncio.TaskGroup() as tasks:
                there = self._relay(reader, target[1], self.upstream, connection)
                back = self._relay(target[0], writer, self.downstream, connection)
                tasks.create_task(there, name="upstream")
                tasks.create_task(back, name="downstream")
        except (OSError, TimeoutError, ExceptionGroup):
            pass  # one end is gone, and so is the other in a moment
        finally:
            connection.abort()
            self._open.discard(connection)
            for end in connection.writers:
                with suppress(OSError):
                    await end.wait_closed()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        weather: Weather,
        connection: _Connection,
    ) -> None:
        """Raises ConnectionResetError at the end of the stream, which ends its twin."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_WAITING_PIECES)
        loop = asyncio.get_running_loop()

        async def depart() -> None:
            while True:
                arrived_s, piece = await waiting.get()
                if weather.deaf:
                    connection.broken = True
                    weather.swallowed_bytes += len(piece)
                    continue
                pace_s = len(piece) / weather.bytes_per_s if weather.bytes_per_s else 0.0
                pause_s = max(arrived_s + weather.delay_s - loop.time(), pace_s)
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                writer.write(piece)
                await writer.drain()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(depart(), name="depart")
            while piece := await reader.read(_PIECE_BYTES):
                await waiting.put((loop.time(), piece))
            raise ConnectionResetError("the stream has ended")
