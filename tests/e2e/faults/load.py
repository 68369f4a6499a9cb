"""The streams of a fault test: what each must say, what it has said so far, how it was cut.

The tokens of an undisturbed run come from the weightless engine itself, computed here.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import aiohttp

from shared.checkpoint import open_checkpoint
from shared.engine.building import build_engine
from tests.shared.engine.sequences import decode, pages_for, prefill, table

CONTEXT_TOKENS: Final = 8192


@cache
def _engine() -> Any:
    pages = pages_for(CONTEXT_TOKENS)
    return build_engine(open_checkpoint("hashchain"), "cpu", "float32", pages, 16, "hashchain")


@cache
def prompt(number: int, length: int) -> tuple[int, ...]:
    """Printable byte tokens; another number begins differently, so nothing is shared."""
    chance = random.Random(f"{number}:{length}")
    return tuple(chance.randrange(32, 127) for _ in range(length))


@cache
def undisturbed(tokens: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Every token of a greedy run that nothing interrupts."""
    pages = table(*range(pages_for(len(tokens) + count)))
    first = prefill(_engine(), tokens, pages)
    return tuple(decode(_engine(), len(tokens), first, pages, count))


@dataclass(eq=False, slots=True)
class Stream:
    """One streamed completion, filled while it runs."""

    tokens: tuple[int, ...]
    output: int
    parameters: dict[str, Any] = field(default_factory=dict)
    status: int = 0
    seen: list[int] = field(default_factory=list)
    finish: str = ""
    code: str = ""
    """Of the error that ended or refused it."""
    done: bool = False
    broken: bool = False
    """The transfer ended without its terminal chunk, or the connection was reset."""
    left: bool = False
    """We hung up."""
    retry_after: str = ""
    request_id: str = ""
    sent_s: float = 0.0
    ended_s: float = 0.0
    longest_gap_s: float = 0.0
    last_s: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def complete(self) -> bool:
        return self.done and bool(self.finish) and not self.code and len(self.seen) == self.output

    @property
    def wrong_tokens(self) -> int:
        """Tokens that differ from the undisturbed run at their place, or lie beyond its end."""
        expected = undisturbed(self.tokens, self.output)
        differing = sum(a != b for a, b in zip(self.seen, expected, strict=False))
        return differing + max(0, len(self.seen) - self.output)

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()

    def describe(self) -> str:
        words = [f"{len(self.seen)}/{self.output} tokens", f"status {self.status}"]
        words += [f"code {self.code}"] * bool(self.code) + ["broken"] * self.broken
        return f"{self.request_id or 'no id'}: {', '.join(words)}"

    async def run(self, http: aiohttp.ClientSession, url: str) -> None:
        """Never raises for what the server does."""
        body = {
            "model": "hashchain",
            "prompt": list(self.tokens),
            "max_tokens": self.output,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
            **self.parameters,
        }
        self.sent_s = self.last_s = time.monotonic()
        try:
            async with http.post(f"{url}/v1/completions", json=body) as response:
                self.status = response.status
                self.request_id = response.headers.get("x-baton-request-id", "")
                self.retry_after = response.headers.get("retry-after", "")
                if response.status != 200:
                    self.code = json.loads(await response.read())["error"]["code"]
                    return
                async for line in response.content:
                    if line.startswith(b"data: "):
                        self._take(line[6:].strip())
        except aiohttp.ClientError:
            self.broken = True
        finally:
            self.ended_s = time.monotonic()

    async def hang_up(self) -> None:
        """Close the connection, as a client does that has lost interest."""
        self.left = True
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task

    def _take(self, event: bytes) -> None:
        if event == b"[DONE]":
            self.done = True
            return
        chunk = json.loads(event)
        if "error" in chunk:
            self.code = str(chunk["error"]["code"])
        for choice in chunk.get("choices", ()):
            fresh = choice.get("token_ids") or ()
            if fresh:
                now = time.monotonic()
                if self.seen:
                    self.longest_gap_s = max(self.longest_gap_s, now - self.last_s)
                self.last_s = now
            self.seen += fresh
            self.finish = choice.get("finish_reason") or self.finish
