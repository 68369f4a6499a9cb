"""Sending a fact until it is acknowledged, as `shared.runtime.retry` does on the real bus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from loadgen.sim.bus import Answer, Silence
from loadgen.sim.process import Process
from shared.bus.headers import Headers
from shared.wire.codec import Message

_ATTEMPT_S: Final = 1.0
_FIRST_S: Final = 0.05
_LIMIT_S: Final = 2.0


def _always() -> bool:
    return True


@dataclass(slots=True, eq=False)
class Sending:
    """One message that is repeated with growing pauses until somebody answers."""

    process: Process
    subject: str
    message: Message
    headers: Headers
    done: Callable[[Answer], None]
    until_s: float
    """On the sender's clock."""
    wanted: Callable[[], bool] = _always
    pause_s: float = _FIRST_S
    last: Silence = Silence.TIMEOUT

    def attempt(self) -> None:
        left_s = self.until_s - self.process.now()
        if left_s <= 0 or not self.wanted():
            if self.wanted():
                self.done(self.last)
            return
        stamped = replace(self.headers, deadline_s=left_s)
        limit_s = min(left_s, _ATTEMPT_S)
        bus = self.process.scene.bus
        bus.request(self.process, self.subject, self.message, stamped, limit_s, self._heard)

    def _heard(self, answer: Answer) -> None:
        if not isinstance(answer, Silence):
            if self.wanted():
                self.done(answer)
            return
        self.last = answer
        pause_s = self.pause_s * (1 - 0.5 * self.process.chance.random())
        self.pause_s = min(_LIMIT_S, 2 * self.pause_s)
        self.process.later(pause_s, self.attempt)
