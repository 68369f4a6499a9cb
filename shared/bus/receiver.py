"""Runs one subscription's handler: decoding, bounded concurrency, typed answers, orderly end.

Shared by all adapters; knows nothing about where bytes come from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from shared.bus.bus import Delivery, Handler
from shared.bus.headers import Headers
from shared.bus.traffic import Traffic, label
from shared.errors import BatonError, BusError, Code, RefusedError, WireError
from shared.wire import codec
from shared.wire.codec import Message
from shared.wire.requests import Refused

WAITING_MESSAGES: Final = 8192
WAITING_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message as it came off the wire; `reply` sends encoded bytes to whoever asked."""

    subject: str
    data: bytes
    fields: dict[str, str] | None
    reply: Callable[[bytes], Awaitable[None]] | None


class Receiver:
    """At most `concurrency` handlers at a time, started in the order of arrival. Arrivals beyond
    the waiting limits are dropped and counted. `close` returns after all accepted ones ended."""

    def __init__(
        self, handler: Handler, concurrency: int, traffic: Traffic, max_reply_bytes: int
    ) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._traffic = traffic
        self._max_reply_bytes = max_reply_bytes
        self._waiting: deque[Arrival] = deque()
        self._waiting_bytes = 0
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    def offer(self, arrival: Arrival) -> None:
        """Take a message in, or drop it. Never waits."""
        if self._closed:
            return self._traffic.dropped("closed")
        if (
            len(self._waiting) >= WAITING_MESSAGES
            or self._waiting_bytes + len(arrival.data) > WAITING_BYTES
        ):
            return self._traffic.dropped("slow_consumer")
        self._traffic.received(arrival.subject)
        self._waiting.append(arrival)
        self._waiting_bytes += len(arrival.data)
        return self._start()

    async def close(self) -> None:
        """Take nothing more; return when what was accepted has been handled. A handler may call
        this: it does not wait for itself."""
        self._closed = True
        while others := self._running - {asyncio.current_task()}:
            await asyncio.wait(others)

    def abandon(self) -> None:
        """Take nothing more and start nothing more; running handlers are left alone."""
        self._closed = True
        self._waiting.clear()

    def cancel(self) -> None:
        """End running handlers by force; `close` returns soon after."""
        self.abandon()
        for task in self._running:
            task.cancel()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._concurrency:
            arrival = self._waiting.popleft()
            self._waiting_bytes -= len(arrival.data)
            name = f"bus {label(arrival.subject)}"
            task = asyncio.create_task(self._handle(arrival), name=name)
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    async def _handle(self, arrival: Arrival) -> None:
        answer = await self._answer(arrival)
        if answer is None or arrival.reply is None:
            return
        try:
            await arrival.reply(self._encoded(answer))
        except BusError:
            self._traffic.dropped("reply_unsent")

    async def _answer(self, arrival: Arrival) -> Message | None:
        try:
            message = codec.decode(arrival.data)
        except WireError as error:
            self._traffic.undecodable(arrival.subject)
            return _refusal(error)
        delivery = Delivery(arrival.subject, message, Headers.decode(arrival.fields))
        try:
            return await self._handler(delivery)
        except BatonError as error:
            return _refusal(error)
        except Exception as error:  # noqa: BLE001 - one bad message must not end the subscription
            self._traffic.handler_failed(arrival.subject, error)
            return Refused(Code.INTERNAL, "the handler failed")

    def _encoded(self, answer: Message) -> bytes:
        data = codec.encode(answer)
        if len(data) <= self._max_reply_bytes:
            return data
        self._traffic.dropped("reply_unsent")
        return codec.encode(Refused(Code.BODY_TOO_LARGE, "the answer is above the payload limit"))


def _refusal(error: BatonError) -> Refused:
    retry_after_s = error.retry_after_s if isinstance(error, RefusedError) else None
    return Refused(error.code, error.message, retry_after_s)
