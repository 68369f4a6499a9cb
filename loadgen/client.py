"""Sends one streamed chat and stamps what comes back, at the socket, before any parsing.

Speaks to any OpenAI-compatible server; Baton's own headers are read where they exist.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from loadgen.records import Row

_MAX_EVENT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to ask."""

    base_url: str
    model: str
    max_tokens: int
    temperature: float
    ignore_eos: bool
    timeout_s: float


async def first_model(session: aiohttp.ClientSession, base_url: str) -> str:
    """The first model that the server lists. Raises aiohttp.ClientError."""
    async with session.get(f"{base_url}/v1/models") as response:
        response.raise_for_status()
        listed = orjson.loads(await response.read())
    return str(listed["data"][0]["id"])


class ChatClient:
    """One HTTP session for a whole run. Never raises for what a server does: it becomes a row."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, started: float) -> None:
        self._session = session
        self._target = target
        self._started = started

    async def chat(self, text: str, row: Row, on_text: Callable[[str], None] | None = None) -> None:
        """Send one request and fill `row`. `on_text` sees each piece of content."""
        row.trace_id = row.trace_id or secrets.token_hex(16)
        headers = {"traceparent": f"00-{row.trace_id}-{secrets.token_hex(8)}-01"}
        row.sent_s = self._now()
        try:
            async with self._session.post(
                f"{self._target.base_url}/v1/chat/completions",
                data=orjson.dumps(self._body(text)),
                headers={**headers, "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=self._target.timeout_s),
            ) as response:
                self._read_head(response, row)
                if response.status != 200:
                    _refused(row, await response.read())
                    return
                await self._read_stream(response, row, on_text)
        except TimeoutError:
            row.outcome, row.reason = "error", "timeout"
        except aiohttp.ClientError as error:
            row.outcome, row.reason = "broken", type(error).__name__

    def _body(self, text: str) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self._target.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self._target.max_tokens,
            "temperature": self._target.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._target.ignore_eos:
            body["ignore_eos"] = True
        return body

    def _read_head(self, response: aiohttp.ClientResponse, row: Row) -> None:
        row.status = response.status
        row.request_id = response.headers.get("x-baton-request-id", "")
        row.route = response.headers.get("x-baton-route", "")
        row.trace_id = response.headers.get("x-baton-trace-id", row.trace_id)

    async def _read_stream(
        self, response: aiohttp.ClientResponse, row: Row, on_text: Callable[[str], None] | None
    ) -> None:
        buffer = b""
        done = False
        async for piece in response.content.iter_any():
            stamp = self._now()
            buffer += piece
            if len(buffer) > _MAX_EVENT_BYTES:
                row.outcome, row.reason = "broken", "event too large"
                return
            *events, buffer = buffer.split(b"\n\n")
            for event in events:
                done = self._read_event(event, stamp, row, on_text) or done
        if row.outcome == "incomplete":
            row.outcome = "ok" if done and row.finish else "broken"
            row.reason = "" if row.outcome == "ok" else "stream ended without its end marker"

    def _read_event(
        self, event: bytes, stamp: float, row: Row, on_text: Callable[[str], None] | None
    ) -> bool:
        """Apply one server-sent event; True for the end marker."""
        if not event.startswith(b"data: "):
            return False
        if event == b"data: [DONE]":
            return True
        chunk = orjson.loads(event[6:])
        if "error" in chunk:
            row.outcome, row.reason = "error", str(chunk["error"].get("code"))
            return False
        _read_usage(chunk.get("usage"), row)
        for choice in chunk.get("choices", ()):
            content = choice.get("delta", {}).get("content")
            if content:
                row.first_s = stamp if row.first_s is None else row.first_s
                row.last_s = stamp
                row.chunks += 1
                if on_text is not None:
                    on_text(content)
            row.finish = choice.get("finish_reason") or row.finish
        return False

    def _now(self) -> float:
        return time.monotonic() - self._started


def _read_usage(usage: Any, row: Row) -> None:
    if not usage:
        return
    row.prompt_tokens = usage.get("prompt_tokens")
    row.output_tokens = usage.get("completion_tokens")
    row.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def _refused(row: Row, body: bytes) -> None:
    row.outcome = "refused" if row.status in (429, 503) else "error"
    try:
        row.reason = str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        row.reason = f"status {row.status}"
