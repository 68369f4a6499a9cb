"""One request on one connection: sent, stamped, read to its end, whatever the end is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from loadgen.events import EventReader, plain, read_refusal
from loadgen.load.http_answer import HttpAnswer, NotHttpError
from loadgen.load.sockets import Connection, Sockets
from loadgen.records import Row

_MOST_REFUSAL: Final = 64 * 1024


@dataclass(slots=True)
class Heard:
    """What an answer said, where somebody follows it."""

    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


class Exchange:
    """Never raises for what a server does: it becomes the row's outcome. `ended` is called once."""

    def __init__(
        self,
        row: Row,
        request: bytes,
        origin_s: float,
        reader: EventReader,
        ended: Callable[[Exchange], None],
    ) -> None:
        self.row = row
        self._request = request
        self._origin_s = origin_s
        self._reader = reader
        self._ended = ended
        self._answer = HttpAnswer(self._on_head, self._on_body)
        self._refusal = b""
        self._stamp_s = 0.0
        self._heard = False
        self._again: Callable[[Exchange], None] | None = None
        self._connection: Connection | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.over = False

    def begin(self, connection: Connection, again: Callable[[Exchange], None] | None) -> None:
        """`again` is asked once for another connection when this one had rested too long."""
        if self.over:
            connection.release()
            return
        self._connection, self._again = connection, again
        connection.listener = self
        stamp_s = connection.send(self._request) - self._origin_s
        if self.row.sent_s is None:
            self.row.sent_s = stamp_s

    def limit(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something so much later, unless the exchange is over."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(seconds, act))

    def received(self, piece: bytes, stamp_s: float) -> None:
        """Of Listener."""
        self._heard = True
        self._stamp_s = stamp_s - self._origin_s
        try:
            self._answer.feed(piece)
        except NotHttpError as error:
            self.give_up("broken", str(error))
            return
        if self._answer.whole:
            self._close()
        elif self.row.outcome != "incomplete":
            self.give_up(self.row.outcome, self.row.reason)

    def lost(self, reason: str) -> None:
        """Of Listener."""
        connection, self._connection = self._connection, None
        if self._answer.end():
            self._close()
            return
        if not self._heard and connection is not None and not connection.fresh and self._again:
            again, self._again = self._again, None
            again(self)
            return
        if self._heard:
            self.give_up("broken", f"{reason} in mid-answer")
        else:
            self.give_up("error", f"{reason} without an answer")

    def give_up(self, outcome: str, reason: str) -> None:
        """End it here; a connection in mid-answer is of no more use."""
        if self.over:
            return
        self.row.outcome, self.row.reason = outcome, reason
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._finish()

    def _close(self) -> None:
        """The body is whole."""
        if self.row.status == 200:
            self._reader.close()
        else:
            read_refusal(self.row, self._refusal)
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._answer.keep_alive:
                connection.release()
            else:
                connection.abort()
        self._finish()

    def _finish(self) -> None:
        if self.over:
            return
        self.over = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._ended(self)

    def _on_head(self, status: int, headers: Mapping[str, str]) -> None:
        row = self.row
        row.status = status
        row.request_id = headers.get("x-baton-request-id", headers.get("x-request-id", ""))
        row.request_id = plain(row.request_id)
        row.route = plain(headers.get("x-baton-route", ""))
        row.trace_id = plain(headers.get("x-baton-trace-id", row.trace_id))

    def _on_body(self, piece: bytes) -> None:
        if self.row.status == 200:
            self._reader.feed(piece, self._stamp_s)
        elif len(self._refusal) < _MOST_REFUSAL:
            self._refusal += piece


async def connect(sockets: Sockets, exchange: Exchange) -> None:
    """Open a connection for an exchange and begin; what cannot be reached is an error row."""
    try:
        connection = await sockets.open()
    except TimeoutError:
        exchange.give_up("error", "cannot connect: no answer")
    except OSError as error:
        # ssl.SSLError is one too; its text names the certificate's fault.
        told = error.strerror or str(error) or type(error).__name__
        exchange.give_up("error", f"cannot connect: {told}"[:96])
    else:
        exchange.begin(connection, None)
