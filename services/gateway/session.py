"""One choice of a client request on its way out: tokens in, text out, one ending.

Owns detokenising, stop strings and the text that waits for the socket. Knows neither the bus nor
HTTP; whoever writes to the client waits for `news` and takes what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.gateway.logprobs import Told
from services.gateway.refusals import Refusal
from services.gateway.stops import StopMatcher, StopRule
from services.gateway.vocabulary import Detokeniser
from shared.clock import Clock
from shared.ids import Attempt, RequestId
from shared.telemetry.trace import Span
from shared.wire.requests import Placement, WorkerRef
from shared.wire.sampling import TokenLogprobs

MAX_WAITING_CHARS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one choice, and the tokens it came from."""

    choice: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    """One for each id, where log-probabilities were asked for."""


class Session:
    """The client's side of one choice. Single-threaded, on the event loop."""

    def __init__(
        self,
        request: RequestId,
        detokeniser: Detokeniser,
        stops: StopRule,
        clock: Clock,
        root: Span,
        sibling: Session | None = None,
    ) -> None:
        """A further choice of the same client request knows the one before, its `sibling`."""
        self.id = request
        self.choice: int = 0 if sibling is None else sibling.choice + 1
        self.news: asyncio.Event = asyncio.Event() if sibling is None else sibling.news
        """Something happened; shared by all choices."""
        self.on_prompt_computed: Callable[[WorkerRef | None], None] | None = None
        """Called once: with the decode worker that holds the prompt's pages, or with None where
        the answer ended before one did."""
        self.root = root
        self.attempts: dict[Attempt, Span] = {}
        """Spans of the attempts; the last one is open while the request runs."""
        self.opened_s = clock.now()
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
        self._stops = StopMatcher(stops.stops, include=stops.include)
        self._unstopped_tokens = stops.min_tokens
        self._waiting: list[str] = []
        self._waiting_ids: list[int] = []
        self._waiting_told: list[Told] = []
        self._text_chars = 0
        self._waiting_chars = 0

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.refusal is not None

    @property
    def route(self) -> str:
        return "none" if self.placement is None else self.placement.route

    @property
    def phase(self) -> str:
        """How far it has come: admission, prefill or decode."""
        if self.placement is None:
            return "admission"
        return "prefill" if self.first_token_s is None else "decode"

    @property
    def overfull(self) -> bool:
        """The client reads so slowly that its text piles up."""
        return self._waiting_chars > MAX_WAITING_CHARS

    def placed(self, placement: Placement) -> None:
        if self.placement is None:
            self.placement = placement
            self.placed_s = self._clock.now()
            self.news.set()

    def deliver(
        self,
        token_ids: Sequence[int],
        finish: str | None,
        cached_tokens: int | None,
        logprobs: Sequence[TokenLogprobs] = (),
        home: WorkerRef | None = None,
    ) -> None:
        """The next tokens of the stream, in order, each once, with as many `logprobs` or none.
        `home` is the decode worker they come from, if it is one. Raises BatonError for a token
        that has no text."""
        if self.ended:
            return
        self._take_in(token_ids, finish, cached_tokens, logprobs)
        if self.on_prompt_computed is not None and (home is not None or self.ended):
            self.on_prompt_computed(home)
            self.on_prompt_computed = None

    def _take_in(
        self,
        token_ids: Sequence[int],
        finish: str | None,
        cached_tokens: int | None,
        logprobs: Sequence[TokenLogprobs],
    ) -> None:
        now = self._clock.now()
        if token_ids:
            self.first_token_s = now if self.first_token_s is None else self.first_token_s
            self.last_token_s = now
        self.cached_tokens = cached_tokens or self.cached_tokens
        for at, token_id in enumerate(token_ids):
            self.completion_tokens += 1
            text = self._detokeniser.feed(token_id)
            self._waiting_ids.append(token_id)
            if logprobs:
                self._waiting_told.append(Told(token_id, self._text_chars, logprobs[at]))
            self._text_chars += len(text)
            if self.completion_tokens > self._unstopped_tokens:
                text = self._stops.feed(text)
            self._show(text)
            if self._stops.matched:
                self._stop()
                return
        if finish is not None:
            self._end(finish)
        self.news.set()

    def fail(self, refusal: Refusal) -> None:
        """The request ends with an error. Nothing may follow."""
        if not self.ended:
            self.refusal = refusal
            self.news.set()

    def take(self) -> Piece:
        """All that waits, as one piece. Tokens without a text of their own wait for one, or for
        the end."""
        text = "".join(self._waiting)
        if not text and not self.ended:
            return Piece(self.choice)
        self._waiting.clear()
        self._waiting_chars = 0
        ids, self._waiting_ids = self._waiting_ids, []
        told, self._waiting_told = self._waiting_told, []
        return Piece(self.choice, text, ids, told)

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
        self.news.set()

    def _show(self, text: str) -> None:
        if text:
            self._waiting.append(text)
            self._waiting_chars += len(text)
