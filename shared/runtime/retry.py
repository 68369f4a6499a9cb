"""Sending a fact until it is acknowledged, with growing pauses under one deadline.

Owns back-off; the caller owns the meaning of the reply and the decision to stop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shared.bus.bus import Bus
from shared.bus.headers import Headers
from shared.clock import Clock
from shared.errors import BusError, BusTimeout, PayloadTooLarge
from shared.wire.codec import Message


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses first_s, first_s*factor, ... up to limit_s, each shortened by up to `jitter`."""

    first_s: float = 0.05
    factor: float = 2.0
    limit_s: float = 2.0
    jitter: float = 0.5

    def pauses(self, chance: random.Random) -> Iterator[float]:
        pause_s = self.first_s
        while True:
            yield pause_s * (1 - self.jitter * chance.random())
            pause_s = min(self.limit_s, pause_s * self.factor)


@dataclass(frozen=True, slots=True)
class Sender:
    """Repeats requests for one process. `chance` is its seeded generator."""

    bus: Bus
    clock: Clock
    chance: random.Random
    backoff: Backoff = Backoff()
    attempt_s: float = 1.0
    """How long one try waits for its reply."""

    async def send(
        self,
        subject: str,
        message: Message,
        headers: Headers,
        timeout_s: float,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Message:
        """Ask again until somebody answers (a `Refused` is an answer). Raises the last BusError
        when `timeout_s` is over or `wanted()` turned false; PayloadTooLarge at once. Each try
        carries the time that is left as its deadline unless the caller's headers have less."""
        end_s = self.clock.now() + timeout_s
        last: BusError = BusTimeout("no time was left to ask")
        for pause_s in self.backoff.pauses(self.chance):
            left_s = end_s - self.clock.now()
            if left_s <= 0 or not wanted():
                break
            try:
                stamped = replace(headers, deadline_s=min(left_s, headers.deadline_s or left_s))
                return await self.bus.request(
                    subject, message, stamped, min(left_s, self.attempt_s)
                )
            except PayloadTooLarge:
                raise
            except BusError as error:
                last = error
            await asyncio.sleep(max(0.0, min(pause_s, end_s - self.clock.now())))
        raise last
