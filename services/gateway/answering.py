"""Writes one session's answer to its client: whole, or as a stream of events.

Owns the hold of the status line, keepalives and the two ways a stream may end.
"""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import web

from services.gateway.headers import answer_headers
from services.gateway.openai_answers import Answer, Usage
from services.gateway.refusals import Unanswered
from services.gateway.routes import Exchange
from services.gateway.session import Session
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
        session: Session,
        answer: Answer,
        prompt_tokens: int,
        ignored: tuple[str, ...],
        clock: Clock,
    ) -> None:
        self._exchange = exchange
        self._session = session
        self._answer = answer
        self._prompt_tokens = prompt_tokens
        self._ignored = ignored
        self._clock = clock
        self.stream: EventStream | None = None
        self._began = False

    async def whole(self) -> web.StreamResponse:
        """The complete answer as one body. Raises Unanswered."""
        session = self._session
        parts: list[str] = []
        while not session.ended:
            await session.changed(_WATCH_S)
            parts.append(session.take())
        if session.refusal is not None:
            raise Unanswered(session.refusal)
        parts.append(session.take())
        reason, ids = session.finish or "stop", session.take_ids()
        body = self._answer.whole("".join(parts), reason, self._usage(), ids)
        return web.Response(
            body=orjson.dumps(body), content_type="application/json", headers=self._headers()
        )

    async def events(self) -> web.StreamResponse:
        """The answer as events. Raises Unanswered while the status line is held; afterwards
        ClientTooSlow and ConnectionError."""
        await self._hold()
        if self._session.refusal is not None:
            raise Unanswered(self._session.refusal)
        stream = EventStream(self._exchange.request, self._headers(), self._clock)
        self.stream = stream
        await stream.open()
        await self._pump(stream)
        return stream.response

    async def _hold(self) -> None:
        session = self._session
        while not session.ended and session.first_token_s is None:
            wait_s = _WATCH_S
            if session.placed_s is not None:
                wait_s = session.placed_s + HOLD_STATUS_S - self._clock.now()
                if wait_s <= 0:
                    return
            await session.changed(wait_s)

    async def _pump(self, stream: EventStream) -> None:
        """Between taking the text and reading the ending nothing may await: they belong
        together."""
        session, answer = self._session, self._answer
        role = answer.first()
        while True:
            text, finish, refusal = session.take(), session.finish, session.refusal
            events: list[dict[str, object]] = []
            if role is not None and (text or finish is not None):
                events.append(role)
                role = None
            if text:
                events.append(answer.delta(text, session.take_ids()))
            if finish is not None:
                events.append(answer.finished(finish, session.take_ids()))
                if answer.include_usage:
                    events.append(answer.usage(self._usage()))
                await stream.send(*self._opened(events))
                await stream.done()
                return
            if events:
                await stream.send(*self._opened(events))
            if refusal is not None:
                await stream.broken(refusal.body(session.id))
                return
            if session.overfull:
                raise ClientTooSlow
            if not await session.changed(KEEPALIVE_S):
                await stream.comment()

    def _opened(self, events: list[dict[str, object]]) -> list[dict[str, object]]:
        """The first event of the stream also carries the prompt's ids, where asked for."""
        if not self._began:
            self._began = True
            events[0] = self._answer.with_prompt_ids(events[0])
        return events

    def _usage(self) -> Usage:
        session = self._session
        return Usage(self._prompt_tokens, session.completion_tokens, session.cached_tokens)

    def _headers(self) -> dict[str, str]:
        known = answer_headers(self._session, self._prompt_tokens, self._ignored)
        return {**self._exchange.headers, **known}
