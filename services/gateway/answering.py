"""Writes the answers of one client request: whole, or as a stream of events.

Owns the hold of the status line, keepalives and the two ways a stream may end.
"""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import web

from services.gateway.choices import Choices
from services.gateway.headers import Facts, answer_headers
from services.gateway.openai_answers import Answer, Usage
from services.gateway.refusals import Unanswered
from services.gateway.routes import Exchange
from services.gateway.session import Piece, Session
from services.gateway.sse import ClientTooSlow, EventStream
from shared.clock import Clock

HOLD_STATUS_S: Final = 5.0
"""After placement the status line waits so long for the first token, so that an early failure
still gets its own status."""
KEEPALIVE_S: Final = 10.0
_WATCH_S: Final = 1.0


class Answering:
    """One answer under way."""

    def __init__(
        self,
        exchange: Exchange,
        choices: Choices,
        answer: Answer,
        facts: Facts,
        clock: Clock,
    ) -> None:
        self._exchange = exchange
        self._choices = choices
        self._answer = answer
        self.facts = facts
        self._clock = clock
        self.stream: EventStream | None = None
        self._began = False
        self._opened: set[int] = set()
        """Choices whose role was told."""
        self._closed: set[int] = set()
        """Choices whose ending was told."""

    async def whole(self) -> web.StreamResponse:
        """The complete answer as one body. Raises Unanswered."""
        choices = self._choices
        while not choices.ended:
            await choices.changed(_WATCH_S)
        if choices.refusal is not None:
            raise Unanswered(choices.refusal)
        answers = [(session.take(), session.finish or "stop") for session in choices.sessions]
        return web.Response(
            body=orjson.dumps(self._answer.whole(answers, self._usage())),
            content_type="application/json",
            headers=self._headers(),
        )

    async def events(self) -> web.StreamResponse:
        """The answer as events. Raises Unanswered while the status line is held; afterwards
        ClientTooSlow and ConnectionError."""
        await self._hold()
        if self._choices.refusal is not None:
            raise Unanswered(self._choices.refusal)
        stream = EventStream(self._exchange.request, self._headers(), self._clock)
        self.stream = stream
        await stream.open()
        await self._pump(stream)
        return stream.response

    async def _hold(self) -> None:
        choices, first = self._choices, self._choices.first
        while not choices.ended and first.first_token_s is None:
            wait_s = _WATCH_S
            if first.placed_s is not None:
                wait_s = first.placed_s + HOLD_STATUS_S - self._clock.now()
                if wait_s <= 0:
                    return
            await choices.changed(wait_s)

    async def _pump(self, stream: EventStream) -> None:
        """Between taking the text and reading the ending nothing may await: they belong
        together."""
        choices, answer = self._choices, self._answer
        while True:
            events = [event for session in choices.sessions for event in self._news(session)]
            refusal, finished = choices.refusal, choices.finished
            if finished and answer.include_usage:
                events.append(answer.usage(self._usage()))
            if events:
                await stream.send(*self._with_prompt_ids(events))
            if finished:
                await stream.done()
                return
            if refusal is not None:
                await stream.broken(refusal.body(choices.first.id))
                return
            if choices.overfull:
                raise ClientTooSlow
            if not await choices.changed(KEEPALIVE_S):
                await stream.comment()

    def _news(self, session: Session) -> list[dict[str, object]]:
        """The events of one choice since the last call."""
        choice = session.choice
        if choice in self._closed:
            return []
        piece, finish = session.take(), session.finish
        events: list[dict[str, object]] = []
        if choice not in self._opened and (piece.text or finish is not None):
            self._opened.add(choice)
            role = self._answer.first(choice)
            events += [] if role is None else [role]
        if piece.text:
            events.append(self._answer.delta(piece))
        if finish is not None:
            self._closed.add(choice)
            rest = Piece(choice) if piece.text else piece
            events.append(self._answer.finished(rest, finish))
        return events

    def _with_prompt_ids(self, events: list[dict[str, object]]) -> list[dict[str, object]]:
        """The first event of the stream also carries the prompt's ids, where asked for."""
        if not self._began:
            self._began = True
            events[0] = self._answer.with_prompt_ids(events[0])
        return events

    def _usage(self) -> Usage:
        choices = self._choices
        return Usage(
            self.facts.prompt_tokens, choices.completion_tokens, choices.first.cached_tokens
        )

    def _headers(self) -> dict[str, str]:
        known = answer_headers(self._choices.first, self.facts)
        return {**self._exchange.headers, **known}
