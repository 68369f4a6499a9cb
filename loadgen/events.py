"""Server-sent events of the OpenAI dialect, applied to a row as they arrive.

Knows no socket: bytes and the instant at which they were read come in, the row is filled. What a
server does wrong becomes the row's outcome and reason; nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from loadgen.records import Row

_MAX_EVENT_BYTES: Final = 1 << 20
_REASON_LENGTH: Final = 96

OnText = Callable[[str], None]
OnIds = Callable[[list[int]], None]
OnGap = Callable[[float, int], None]


class EventReader:
    """One answer. `feed` as bytes come, `close` when the body ended cleanly."""

    __slots__ = ("_buffer", "_done", "_on_gap", "_on_ids", "_on_text", "_row", "_told")

    def __init__(
        self,
        row: Row,
        on_text: OnText | None = None,
        on_ids: OnIds | None = None,
        on_gap: OnGap | None = None,
    ) -> None:
        """`on_text` sees each piece of content, `on_ids` token ids where the server sends them,
        `on_gap` the seconds before a chunk and the tokens in it (the first chunk has none)."""
        self._row = row
        self._on_text = on_text
        self._on_ids = on_ids
        self._on_gap = on_gap
        self._buffer = b""
        self._done = False
        self._told = 0

    def feed(self, piece: bytes, stamp_s: float) -> None:
        """Bytes that were read at `stamp_s`."""
        if self._row.outcome != "incomplete":
            return
        pending = self._buffer + piece
        if b"\r" in pending:
            pending = pending.replace(b"\r\n", b"\n")
        *events, self._buffer = pending.split(b"\n\n")
        if len(self._buffer) > _MAX_EVENT_BYTES:
            self._fail("broken", "event too large")
        for event in events:
            self._take(event, stamp_s)

    def close(self) -> None:
        """The body is whole. A stream without its end marker is not."""
        row = self._row
        if row.outcome != "incomplete":
            return
        if row.chunks == 0 and not self._done:
            self._fail("broken", "no server-sent events in the answer")
        elif self._done and row.finish:
            row.outcome = "ok"
        else:
            self._fail("broken", "stream ended without its end marker")

    def _take(self, event: bytes, stamp_s: float) -> None:
        for line in event.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            said = line[5:].strip()
            if said == b"[DONE]":
                self._done = True
                continue
            try:
                chunk = orjson.loads(said)
            except orjson.JSONDecodeError:
                self._fail("broken", "an event is not JSON")
                return
            if not isinstance(chunk, dict):
                self._fail("broken", "an event is not an object")
                return
            self._apply(chunk, stamp_s)

    def _apply(self, chunk: dict[str, Any], stamp_s: float) -> None:
        if (error := chunk.get("error")) is not None:
            self._fail("error", code_of(error) or "error in the stream")
            return
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            _read_usage(usage, self._row)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._choose(choice, usage, stamp_s)

    def _choose(self, choice: dict[str, Any], usage: object, stamp_s: float) -> None:
        row = self._row
        ids = choice.get("token_ids")
        delta = choice.get("delta")
        text = _text_of(delta if isinstance(delta, dict) else choice)
        if text or ids:
            tokens = self._tokens(ids, usage)
            if row.first_s is None:
                row.first_s = stamp_s
            elif row.last_s is not None:
                gap_s = stamp_s - row.last_s
                row.widest_gap_s = max(row.widest_gap_s or 0.0, gap_s)
                if self._on_gap is not None:
                    self._on_gap(gap_s, tokens)
            row.last_s = stamp_s
            row.chunks += 1
        if text and self._on_text is not None:
            self._on_text(text)
        if isinstance(ids, list) and self._on_ids is not None:
            self._on_ids(ids)
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            row.finish = plain(finish)

    def _tokens(self, ids: object, usage: object) -> int:
        """How many tokens a chunk carries: told by the server, or taken as one."""
        if isinstance(ids, list) and ids:
            return len(ids)
        if isinstance(usage, dict) and type(made := usage.get("completion_tokens")) is int:
            before, self._told = self._told, made
            return max(1, made - before)
        return 1

    def _fail(self, outcome: str, reason: str) -> None:
        self._row.outcome, self._row.reason = outcome, plain(reason)


def read_refusal(row: Row, body: bytes) -> None:
    """An answer that is not 200: the row says which, by the server's own code where it has one."""
    row.outcome = "refused" if row.status in (429, 503) else "error"
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = None
    error = told.get("error", told) if isinstance(told, dict) else None
    blamed = error.get("param") if isinstance(error, dict) else None
    where = f" ({blamed})" if isinstance(blamed, str) and blamed else ""
    row.reason = plain((code_of(error) or f"status {row.status}") + where)


def code_of(error: object) -> str:
    """The most telling word of an error object; empty when it says nothing."""
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return ""
    found = (error.get(name) for name in ("code", "type", "message"))
    return next((str(one) for one in found if isinstance(one, str | int) and one != ""), "")


def plain(text: str) -> str:
    """One short line, whatever a server says."""
    return "".join(c if c.isprintable() else " " for c in text[:_REASON_LENGTH])


def _text_of(said: dict[str, Any]) -> str:
    """Content, reasoning, tool arguments or a completion's text; empty for role and usage."""
    for name in ("content", "text", "reasoning_content", "reasoning"):
        if isinstance(text := said.get(name), str) and text:
            return text
    calls = said.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
            return text
    return ""


def _read_usage(usage: dict[str, Any], row: Row) -> None:
    for field, name in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        if type(count := usage.get(name)) is int and count >= 0:
            setattr(row, field, count)
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    row.cached_tokens = cached if type(cached) is int else 0
