"""This worker's dealings with the pool: offers, questions, and the pool's reads of our pages.

Every failure becomes an ordinary event; the core computes instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from services.decode.core import actions as do
from services.decode.core import events as on
from services.decode.core.machine import DecodeMachine
from shared.bus.bus import Bus
from shared.bus.headers import Headers
from shared.clock import Clock
from shared.errors import BusError, WireError
from shared.ids import Generation, PageId
from shared.wire import subjects
from shared.wire.blocks import BlocksFound, BlocksKept

_RELEASE_S: Final = 2.0


class Guard:
    """Implements ReadGuard: the pool reads what was offered to it; refuses all until attached."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machine: DecodeMachine | None = None
        self._feed: Callable[[on.Event], None] | None = None

    def attach(self, machine: DecodeMachine, feed: Callable[[on.Event], None]) -> None:
        self._machine, self._feed = machine, feed

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        if self._machine is None:
            return None
        return self._machine.desk.cache.open_read(ticket, pages, self._clock.now())

    def close_read(self, read: int) -> None:
        if self._feed is not None:
            self._feed(on.ReadEnded(read))


@dataclass(frozen=True, slots=True)
class PoolFlow:
    """Asks once: a pool that has to be asked twice is no shortcut."""

    bus: Bus
    fetch_s: float
    """How long the pool may take to answer a question."""
    offer_s: float
    """How long it may take to pull an offer: less than the lease lives."""

    async def offer(self, wish: do.Offer) -> on.OfferEnded:
        subject, headers = subjects.pool(wish.pool.worker), Headers(epoch=wish.offer.owner.epoch)
        kept = 0
        with contextlib.suppress(BusError, WireError):
            reply = await self.bus.request(subject, wish.offer, headers, self.offer_s)
            kept = reply.kept if isinstance(reply, BlocksKept) else 0
        return on.OfferEnded(wish.request, wish.attempt, min(kept, len(wish.offer.pages)))

    async def look_up(self, wish: do.LookUp) -> on.PoolAnswered:
        subject, headers = subjects.pool(wish.pool.worker), Headers(epoch=wish.lookup.reader.epoch)
        found: BlocksFound | None = None
        with contextlib.suppress(BusError, WireError):
            reply = await self.bus.request(subject, wish.lookup, headers, self.fetch_s)
            found = reply if isinstance(reply, BlocksFound) else None
        return on.PoolAnswered(wish.fetch, wish.request, wish.attempt, found)

    async def release(self, wish: do.ReleasePool) -> None:
        """The pool's lease would run out by itself."""
        with contextlib.suppress(BusError, WireError):
            subject = subjects.pool(wish.pool.worker)
            await self.bus.request(subject, wish.release, Headers(), _RELEASE_S)
