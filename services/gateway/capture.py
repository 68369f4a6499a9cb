"""Live traffic as lengths, names of blocks, times and hints, for whoever watches on the admin port
(`python -m loadgen capture`). No text, no token and no client's key passes: blocks and sessions are
told as digests under a key that is made for one watcher and forgotten with it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

import orjson
from aiohttp import web

from services.gateway.core.events import Hints
from services.gateway.routes import Exchange
from shared.clock import Clock
from shared.errors import Code, RefusedError
from shared.ids import RequestId
from shared.wire.requests import PlaceRequest

FORMAT: Final = "baton.capture/1"
MOST_WATCHERS: Final = 4
QUEUE_ROWS: Final = 4_096
KEEPALIVE_S: Final = 5.0
_REMEMBERED: Final = 16_384
_NAME_BYTES: Final = 8


class Capture:
    """Costs nothing while nobody watches."""

    def __init__(self, clock: Clock, block_tokens: int) -> None:
        self._clock = clock
        self._block_tokens = block_tokens
        self._watchers: list[_Watcher] = []
        self._asked: dict[RequestId, PlaceRequest] = {}
        """First attempts whose end is still to come, while somebody watches."""

    def placed(self, ask: PlaceRequest) -> None:
        """The gateway asks where a request shall run."""
        if self._watchers and ask.attempt == 1 and len(self._asked) < _REMEMBERED:
            self._asked.setdefault(ask.request, ask)

    def ended(
        self, request: RequestId, started_s: float, output_tokens: int, hints: Hints, outcome: str
    ) -> None:
        """The request is over, however it ended; the first of several choices stands for all."""
        ask = self._asked.pop(request, None)
        for watcher in self._watchers:
            if started_s < watcher.began_s:
                continue
            if ask is None:
                watcher.unplaced += 1
            else:
                at_s = started_s - watcher.began_s
                watcher.offer(watcher.row(ask, at_s, output_tokens, hints, outcome))

    async def watch(self, exchange: Exchange) -> web.StreamResponse:
        """GET /admin/capture: lines of JSON as requests end, until the watcher goes away. Raises
        RefusedError when too many watch already."""
        if len(self._watchers) >= MOST_WATCHERS:
            raise RefusedError("too many are capturing already", Code.QUEUE_FULL, 1.0)
        watcher = _Watcher(self._clock.now())
        self._watchers.append(watcher)
        kind = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers={**exchange.headers, **kind})
        try:
            await response.prepare(exchange.request)
            head = {"format": FORMAT, "block_tokens": self._block_tokens}
            await response.write(orjson.dumps(head) + b"\n")
            while True:
                await response.write(await watcher.next_lines())
        finally:
            self._watchers.remove(watcher)
            if not self._watchers:
                self._asked.clear()


class _Watcher:
    """One reader: what waits for it is bounded, and what did not fit is counted."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.unplaced = 0
        """Requests that ended before a placement was asked for."""
        self._key = secrets.token_bytes(32)
        self._rows: asyncio.Queue[dict[str, Any]] = asyncio.Queue(QUEUE_ROWS)
        self._lost = 0

    def offer(self, row: dict[str, Any]) -> None:
        try:
            self._rows.put_nowait(row)
        except asyncio.QueueFull:
            self._lost += 1

    def row(
        self, ask: PlaceRequest, at_s: float, output_tokens: int, hints: Hints, outcome: str
    ) -> dict[str, Any]:
        """Numbers, digests and words of closed sets."""
        found: dict[str, Any] = {
            "at_s": round(at_s, 6),
            "prompt_tokens": ask.prompt_tokens,
            "output_tokens": output_tokens,
            "blocks": self._names(ask.block_hashes),
            "outcome": outcome,
        }
        if hints.affinity_key:
            found["session"] = self._name(hints.affinity_key)
        if ask.priority:
            found["priority"] = ask.priority
        for name in ("expected_tokens", "ttft_slo_s", "tpot_slo_s"):
            if value := getattr(hints, name):
                found[name] = value
        return found

    async def next_lines(self) -> bytes:
        """What waits, or a sign of life; with what had to be left out since the last time."""
        rows: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                rows.append(await self._rows.get())
        except TimeoutError:
            rows.append({"alive": True})
        while not self._rows.empty():
            rows.append(self._rows.get_nowait())
        if self._lost or self.unplaced:
            rows.append({"lost": self._lost, "unplaced": self.unplaced})
            self._lost = self.unplaced = 0
        return b"".join(orjson.dumps(row) + b"\n" for row in rows)

    def _names(self, blocks: Iterable[str]) -> list[str]:
        return [self._name(block) for block in blocks]

    def _name(self, secret: str) -> str:
        told = blake2b(secret.encode(), key=self._key, digest_size=_NAME_BYTES)
        return told.hexdigest()
