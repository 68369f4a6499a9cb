"""The choices of one client request: one session each, one place to wait, one ending of all.

The first computes the prompt. The others are opened when its pages are there, so that they share
them (ADR 13). Knows neither the bus nor HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.gateway.refusals import Refusal
from services.gateway.session import Session
from shared.wire.requests import WorkerRef

OpenChoice = Callable[[int, WorkerRef | None], Session]
"""Opens a further choice, if possible near the worker that holds the prompt's pages."""


class Choices:
    """Single-threaded, on the event loop."""

    def __init__(self, first: Session, count: int, open_choice: OpenChoice) -> None:
        self.count = count
        self.sessions = [first]
        self._open_choice = open_choice
        self._left = False
        first.on_prompt_computed = self._go_on

    @property
    def first(self) -> Session:
        return self.sessions[0]

    @property
    def refusal(self) -> Refusal | None:
        """One choice that fails ends them all."""
        return next((s.refusal for s in self.sessions if s.refusal is not None), None)

    @property
    def finished(self) -> bool:
        """Every choice has its whole answer."""
        opened = len(self.sessions) == self.count
        return opened and all(session.finish is not None for session in self.sessions)

    @property
    def ended(self) -> bool:
        return self.refusal is not None or self.finished

    @property
    def overfull(self) -> bool:
        return any(session.overfull for session in self.sessions)

    @property
    def completion_tokens(self) -> int:
        return sum(session.completion_tokens for session in self.sessions)

    async def changed(self, timeout_s: float) -> bool:
        """Wait for anything new since the last call; False when the time is over."""
        news = self.first.news
        try:
            async with asyncio.timeout(timeout_s):
                await news.wait()
        except TimeoutError:
            return False
        news.clear()
        return True

    def leave(self) -> list[Session]:
        """Nobody listens any more: no further choice is opened. All sessions there were."""
        self._left = True
        return self.sessions

    def _go_on(self, home: WorkerRef | None) -> None:
        if self._left:
            return
        for index in range(1, self.count):
            self.sessions.append(self._open_choice(index, home))
