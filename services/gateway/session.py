"""One client request on its way out: tokens in, text out, one ending.

Owns detokenising, stop strings and the text that waits for the socket. Knows neither the bus nor
HTTP; whoever writes to the client awaits `changed` and takes what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from services.gateway.refusals import Refusal
from services.gateway.stops import StopMatcher
from services.gateway.vocabulary import Detokeniser
from shared.clock import Clock
from shared.ids import Attempt, RequestId
from shared.telemetry.trace import Span
from shared.wire.requests import Placement

MAX_WAITING_CHARS: Final = 1 << 20


class Session:
    """The client's side of one request. Single-threaded, on the event loop."""

    def __init__(
        self,
        request: RequestId,
        detokeniser: Detokeniser,
        stops: Sequence[str],
        clock: Clock,
        root: Span,
    ) -> None:
        self.id = request
        self.root = root
        self.attempts: dict[Attempt, Span] = {}
        """Spans of the attempts; the last one is open while the request runs."""
        self.placement: Placement | None = None
        self.placed_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finish: str | None = None
        self.refusal: Refusal | None = None
        self.stopped = False
        """A stop string matched: the cluster has to be told."""
        self._clock = clock
        self._detokeniser = detokeniser
        self._stops = StopMatcher(stops)
        self._waiting: list[str] = []
        self._waiting_ids: list[int] = []
        self._waiting_chars = 0
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.refusal is not None

    @property
    def overfull(self) -> bool:
        """The client reads so slowly that its text piles up."""
        return self._waiting_chars > MAX_WAITING_CHARS

    def placed(self, placement: Placement) -> None:
        if self.placement is None:
            self.placement = placement
            self.placed_s = self._clock.now()
            self._changed.set()

    def deliver(
        self, token_ids: Sequence[int], finish: str | None, cached_tokens: int | None
    ) -> None:
        """The next tokens of the stream, in order, each once. Raises BatonError for a token that
        has no text."""
        if self.ended:
            return
        now = self._clock.now()
        if token_ids:
            self.first_token_s = now if self.first_token_s is None else self.first_token_s
            self.last_token_s = now
        self.cached_tokens = cached_tokens or self.cached_tokens
        for token_id in token_ids:
            self.completion_tokens += 1
            self._waiting_ids.append(token_id)
            self._show(self._stops.feed(self._detokeniser.feed(token_id)))
            if self._stops.matched:
                self._stop()
                return
        if finish is not None:
            self._end(finish)
        self._changed.set()

    def fail(self, refusal: Refusal) -> None:
        """The request ends with an error. Nothing may follow."""
        if not self.ended:
            self.refusal = refusal
            self._changed.set()

    def take(self) -> str:
        """All text that waits, as one piece."""
        text = "".join(self._waiting)
        self._waiting.clear()
        self._waiting_chars = 0
        return text

    def take_ids(self) -> list[int]:
        """All tokens since the last call."""
        ids, self._waiting_ids = self._waiting_ids, []
        return ids

    async def changed(self, timeout_s: float) -> bool:
        """Wait for anything new since the last call; False when the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def _end(self, finish: str) -> None:
        """Held-back text goes through the matcher like any other before the end is told."""
        self._show(self._stops.feed(self._detokeniser.finish()))
        if self._stops.matched:
            self._stop()
            return
        self._show(self._stops.finish())
        self.finish = finish

    def _stop(self) -> None:
        self.finish = "stop"
        self.stopped = True
        self._changed.set()

    def _show(self, text: str) -> None:
        if text:
            self._waiting.append(text)
            self._waiting_chars += len(text)
