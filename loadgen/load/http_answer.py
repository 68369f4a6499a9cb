"""Reads one HTTP/1.1 answer from bytes as they come: head, then a body that is chunked, counted, or
ends with the connection. Knows no socket and no meaning of a body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

_MOST_HEAD: Final = 64 * 1024
_MOST_LINE: Final = 4 * 1024


class NotHttpError(Exception):
    """The peer said something else."""


class HttpAnswer:
    """Feed it; `on_head` comes once, `on_body` for each piece, `whole` says when it is over."""

    __slots__ = (
        "_buffer",
        "_left",
        "_mode",
        "_on_body",
        "_on_head",
        "_trailing",
        "keep_alive",
        "status",
        "whole",
    )

    def __init__(
        self,
        on_head: Callable[[int, Mapping[str, str]], None],
        on_body: Callable[[bytes], None],
    ) -> None:
        self._on_head = on_head
        self._on_body = on_body
        self._buffer = b""
        self._mode = "head"
        self._left = 0
        self._trailing = False
        self.status = 0
        self.keep_alive = True
        self.whole = False

    def feed(self, piece: bytes) -> None:
        """Raises NotHttpError."""
        pending = self._buffer + piece if self._buffer else piece
        self._buffer = b""
        if self._mode == "head":
            pending = self._head(pending)
        while pending and not self.whole and self._mode != "head":
            if self._mode == "chunked":
                pending = self._chunked(pending)
            elif self._mode == "counted":
                taken = pending[: self._left]
                self._left -= len(taken)
                self._on_body(taken)
                self.whole = self._left == 0
                return
            else:
                self._on_body(pending)
                return

    def end(self) -> bool:
        """The peer closed; True when that is how this body ends."""
        if self._mode == "until-close":
            self.whole = True
        return self.whole

    def _head(self, pending: bytes) -> bytes:
        """What follows the head; keeps an unfinished one."""
        while True:
            head, found, rest = pending.partition(b"\r\n\r\n")
            if not found:
                if len(pending) > _MOST_HEAD or not b"HTTP/1.".startswith(pending[:7]):
                    raise NotHttpError("the answer is not HTTP/1.1")
                self._buffer = pending
                return b""
            lines = head.decode("latin-1").split("\r\n")
            version, _, status = lines[0].partition(" ")
            if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
                raise NotHttpError("the answer is not HTTP/1.1")
            self.status = int(status[:3])
            if not 100 <= self.status < 200:
                break
            pending = rest
        headers = {
            name.strip().lower(): text.strip()
            for name, _, text in (line.partition(":") for line in lines[1:])
        }
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and version != "HTTP/1.0"
        self._choose_body(headers)
        self._on_head(self.status, headers)
        return rest

    def _choose_body(self, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._mode = "chunked"
        elif length is not None:
            if not length.isdecimal():
                raise NotHttpError("Content-Length is no number")
            self._mode, self._left = "counted", int(length)
            self.whole = self._left == 0
        elif self.status in (204, 304):
            self._mode, self.whole = "counted", True
        else:
            self._mode, self.keep_alive = "until-close", False

    def _chunked(self, pending: bytes) -> bytes:
        """One step through `SIZE CRLF bytes CRLF … 0 CRLF trailers CRLF`."""
        if self._left > 0:
            taken = pending[: self._left]
            self._left -= len(taken)
            self._on_body(taken)
            self._trailing = self._left == 0
            return pending[len(taken) :]
        line, found, rest = pending.partition(b"\r\n")
        if not found:
            if len(pending) > _MOST_LINE:
                raise NotHttpError("a chunk without a size")
            self._buffer = pending
            return b""
        if self._trailing:
            if line:
                raise NotHttpError("a chunk longer than its size")
            self._trailing = False
            return rest
        if self._left < 0:
            # After the last chunk: trailers, then an empty line.
            self.whole = line == b""
            return rest
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise NotHttpError("a chunk without a size") from None
        self._left = size or -1
        return rest
