"""Reads an event stream the way a client does, and keeps what a test may ask about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True, kw_only=True)
class Answer:
    """One streamed answer."""

    status: int
    headers: dict[str, str]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    """The error object, of a refusal or of an event inside the stream."""
    done: bool = False
    """Whether `[DONE]` came."""
    broken: bool = False
    """Whether the transfer ended without its terminal chunk."""
    chunks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trace_id(self) -> str:
        return self.headers.get("x-baton-trace-id", "")

    @property
    def cached_tokens(self) -> int:
        return int((self.usage or {})["prompt_tokens_details"]["cached_tokens"])

    @property
    def complete(self) -> bool:
        """A true statement of the model: finished, counted, closed."""
        return self.done and self.finish_reason is not None and self.error is None


async def read_stream(response: aiohttp.ClientResponse) -> Answer:
    """Never raises for what the server does: it shows in the answer."""
    headers = {name.lower(): text for name, text in response.headers.items()}
    answer = Answer(status=response.status, headers=headers)
    if response.status != 200:
        answer.error = json.loads(await response.read())["error"]
        return answer
    try:
        async for line in response.content:
            if line.startswith(b"data: "):
                _take(answer, line[6:].strip())
    except aiohttp.ClientPayloadError:
        answer.broken = True
    return answer


def _take(answer: Answer, event: bytes) -> None:
    if event == b"[DONE]":
        answer.done = True
        return
    chunk = json.loads(event)
    answer.chunks.append(chunk)
    answer.error = chunk.get("error", answer.error)
    answer.usage = chunk.get("usage") or answer.usage
    for choice in chunk.get("choices", ()):
        answer.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        answer.token_ids += choice.get("token_ids") or ()
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
