"""Tokens on their way to gateways: in order, buffered while the bus is down.

The buffer is bounded and may lose its oldest messages; the core's token log is authoritative and
the gateway asks again for what it misses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from shared.bus.bus import Bus
from shared.bus.headers import Headers
from shared.errors import BusError, BusUnavailable
from shared.ids import WorkerId
from shared.wire import subjects
from shared.wire.requests import JobFailed, TokenChunk

BUFFERED_MESSAGES: Final = 8192
_RETRY_S: Final = 0.25


class Emitter:
    """One sender for all gateways. `lost` hears how many messages were given up."""

    def __init__(self, bus: Bus, lost: Callable[[int], None]) -> None:
        self._bus = bus
        self._lost = lost
        self._waiting: deque[tuple[WorkerId, TokenChunk | JobFailed, Headers]] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        bus.on_reconnect(self._wake.set)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def send(self, gateway: WorkerId, message: TokenChunk | JobFailed, headers: Headers) -> None:
        """Queue a message; never waits."""
        if len(self._waiting) >= BUFFERED_MESSAGES:
            self._waiting.popleft()
            self._lost(1)
        self._waiting.append((gateway, message, headers))
        self._empty.clear()
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            if not self._waiting:
                self._empty.set()
                await self._wake.wait()
            self._wake.clear()
            await self._flush()

    async def flushed(self, timeout_s: float) -> bool:
        """Wait until nothing waits; False when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def _flush(self) -> None:
        while self._waiting:
            gateway, message, headers = self._waiting[0]
            try:
                await self._bus.publish(subjects.tokens(gateway), message, headers)
            except BusUnavailable:
                await self._pause()
                continue
            except BusError:
                self._lost(1)
            if self._waiting and self._waiting[0][1] is message:
                self._waiting.popleft()

    async def _pause(self) -> None:
        """Until the connection is back; looked at again now and then, since the callback of a
        connection that returned at once may have come before we waited."""
        self._wake.clear()
        try:
            async with asyncio.timeout(_RETRY_S):
                await self._wake.wait()
        except TimeoutError:
            return
