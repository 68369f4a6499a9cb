"""Sends one streamed request and stamps what comes back, at the socket, before any parsing.

Speaks to any OpenAI-compatible server; Baton's own headers are read where they exist.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import aiohttp
import orjson

from loadgen.events import EventReader, read_refusal
from loadgen.prompts import Prompt
from loadgen.records import Row


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


async def send_all(target: Target, schedule: Sequence[float], texts: Sequence[Prompt]) -> list[Row]:
    """Each text as a chat at its time, from this process; a row each. Without a model in `target`
    the first that is listed. Raises aiohttp.ClientError: the server does not answer at all."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        model = target.model or await first_model(session, target.base_url)
        started = time.monotonic()
        client = ChatClient(session, replace(target, model=model), started)
        rows: list[Row] = []
        async with asyncio.TaskGroup() as tasks:
            for number, (intended_s, prompt) in enumerate(zip(schedule, texts, strict=True)):
                delay_s = started + intended_s - time.monotonic()
                if delay_s > 0:
                    await asyncio.sleep(delay_s)
                rows.append(Row(number, prompt.group, intended_s, trace_id=""))
                chat = client.chat(prompt.text, rows[-1], max_tokens=prompt.max_tokens)
                tasks.create_task(chat, name=f"request-{number}")
    return rows


class ChatClient:
    """One HTTP session for a whole run. Never raises for what a server does: it becomes a row."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, started: float) -> None:
        self._session = session
        self._target = target
        self._started = started

    async def chat(
        self,
        text: str,
        row: Row,
        on_text: Callable[[str], None] | None = None,
        max_tokens: int = 0,
    ) -> None:
        """Send one chat and fill `row`. `on_text` sees each piece of content; `max_tokens` 0: as
        the target has it."""
        body: dict[str, object] = {"messages": [{"role": "user", "content": text}]}
        if max_tokens:
            body["max_tokens"] = max_tokens
        await self._send("/v1/chat/completions", body, row, on_text)

    async def complete(self, prompt: list[int], row: Row) -> None:
        """Send one completion of token ids and fill `row`."""
        await self._send("/v1/completions", {"prompt": prompt}, row, None)

    async def _send(
        self,
        path: str,
        asked: Mapping[str, object],
        row: Row,
        on_text: Callable[[str], None] | None,
    ) -> None:
        row.trace_id = row.trace_id or secrets.token_hex(16)
        headers = {"traceparent": f"00-{row.trace_id}-{secrets.token_hex(8)}-01"}
        row.sent_s = self._now()
        try:
            async with self._session.post(
                f"{self._target.base_url}{path}",
                data=orjson.dumps({**self._wishes(), **asked}),
                headers={**headers, "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=self._target.timeout_s),
            ) as response:
                self._read_head(response, row)
                if response.status != 200:
                    read_refusal(row, await response.read())
                    return
                await self._read_stream(response, row, on_text)
        except TimeoutError:
            row.outcome, row.reason = "error", "timeout"
        except aiohttp.ClientError as error:
            row.outcome, row.reason = "broken", type(error).__name__

    def _wishes(self) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self._target.model,
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
        reader = EventReader(row, on_text)
        async for piece in response.content.iter_any():
            reader.feed(piece, self._now())
            if row.outcome != "incomplete":
                return
        reader.close()

    def _now(self) -> float:
        return time.monotonic() - self._started
