"""Requests that wait for their reply: one outcome each, whatever comes late, twice or crossed.

Shared by all adapters. Tokens are counted, never drawn, so two requests cannot share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count

from shared.bus.traffic import Traffic
from shared.errors import BusError, BusTimeout
from shared.wire import codec
from shared.wire.codec import Message


@dataclass(slots=True)
class _Waiting:
    subject: str
    reply: asyncio.Future[bytes]


class Replies:
    """The open requests of one connection."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._waiting: dict[int, _Waiting] = {}
        self._tokens = count(1)

    async def ask(
        self, subject: str, timeout_s: float, send: Callable[[int], Awaitable[None]]
    ) -> Message:
        """Send with a fresh token and await its reply. Raises BusTimeout, what `send` raises,
        what `fail` was given, and WireError for a reply that is no message."""
        loop = asyncio.get_running_loop()
        token, started = next(self._tokens), loop.time()
        waiting = self._waiting[token] = _Waiting(subject, loop.create_future())
        try:
            async with asyncio.timeout(timeout_s):
                await send(token)
                data = await waiting.reply
        except TimeoutError:
            raise BusTimeout("no answer in time") from None
        finally:
            del self._waiting[token]
            _retire(waiting.reply)
            self._traffic.answered(subject, loop.time() - started)
        return codec.decode(data)

    def resolve(self, token: int, data: bytes) -> None:
        """A reply arrived; after the outcome is known it is counted and ignored."""
        waiting = self._waiting.get(token)
        if waiting is None or waiting.reply.done():
            self._traffic.dropped("late_reply")
        else:
            waiting.reply.set_result(data)

    def fail(self, error: BusError, *, token: int | None = None, subject: str = "") -> None:
        """End open requests: one token, those on a subject, or all."""
        for key, waiting in list(self._waiting.items()):
            concerned = token in (None, key) and (not subject or _same(subject, waiting.subject))
            if concerned and not waiting.reply.done():
                waiting.reply.set_exception(error)


def _same(subject: str, other: str) -> bool:
    """The client library lowers the subjects in the server's error texts."""
    return subject.casefold() == other.casefold()


def _retire(reply: asyncio.Future[bytes]) -> None:
    """Nobody looks at this future again: no warning about an unread exception."""
    if not reply.cancel() and not reply.cancelled():
        reply.exception()
