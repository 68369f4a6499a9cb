"""A pool node's decisions: what to pull of an offer, what to lend to a reader, what to forget.

Pure: events in, actions out. Owns the page cache; knows no bus, no plane and no bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from services.kvpool.core.actions import Action, PublishBlocks
from services.kvpool.core.events import (
    DrainBegun,
    Event,
    LookupArrived,
    OfferArrived,
    PeerLost,
    PullEnded,
    PullFailed,
    ReadEnded,
    ReleaseArrived,
    Ticked,
)
from services.kvpool.core.lending import Lending
from services.kvpool.core.state import PoolLimits, PoolState
from services.kvpool.core.storing import Storing
from shared.ids import Generation, PageId
from shared.kv.cache import PageCache, Removed
from shared.kv.invariants import require
from shared.wire.requests import WorkerRef


class PoolMachine:
    """The state of one pool node. `handle` is the only way in, besides `open_read`."""

    def __init__(self, owner: WorkerRef, cache: PageCache, limits: PoolLimits) -> None:
        self.cache = cache
        self._state = PoolState(owner, cache, limits)
        self._storing = Storing(self._state)
        self._lending = Lending(self._state)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply one event; everything that is to be done, in order. Raises TypeError for an
        object that is no event."""
        if not isinstance(event, Event):
            raise TypeError(f"{type(event).__name__} is not an event of a pool node")
        match event:
            case OfferArrived():
                self._storing.offered(event, now)
            case LookupArrived():
                self._lending.asked(event, now)
            case ReleaseArrived():
                self._lending.released(event, now)
            case PullEnded():
                self._storing.pulled(event, now)
            case PullFailed():
                self._storing.pull_failed(event, now)
            case ReadEnded():
                self.cache.close_read(event.read)
            case PeerLost():
                self._storing.owner_lost(event.lost, now)
                self._lending.reader_lost(event.lost, now)
            case Ticked():
                self._lending.expire(now)
                self._storing.expire(now)
            case DrainBegun():
                self._state.draining = True
                self._storing.leave(now)
            case _:
                assert_never(event)
        self._storing.start(now)
        self._publish()
        out, self._state.out = self._state.out, []
        return out

    def open_read(
        self, ticket: str, pages: Sequence[tuple[PageId, Generation]], now: float
    ) -> int | None:
        """A read id when `ticket` opens all these pages now, else None: for the plane, which
        needs the answer at once. Such a read ends with `ReadEnded`."""
        read = self.cache.open_read(ticket, pages, now)
        self._state.counts["reads_refused" if read is None else "reads_opened"] += 1
        return read

    # -- views -----------------------------------------------------------------------------

    @property
    def counts(self) -> Mapping[str, int]:
        """What happened since the start, by name; only grows."""
        return self._state.counts

    @property
    def offers_open(self) -> int:
        """Offers without an answer."""
        return self._storing.open

    @property
    def at_rest(self) -> bool:
        """No offer is open and nobody may read: a draining node can leave."""
        pages = self.cache.counts()
        return not (self.offers_open or pages.leases or pages.open_reads)

    def story(self, ticket: str) -> str:
        """The life of an offer or a lookup, as far as it is remembered."""
        return self._state.diary.story(ticket)

    def check(self) -> None:
        """Re-derive everything from scratch; raises InvariantError."""
        self.cache.check()
        self._storing.check()
        self._lending.check()
        require(not self._state.out, "an action was left over")

    def _publish(self) -> None:
        events = self.cache.events()
        if events:
            removed = sum(len(event.blocks) for event in events if isinstance(event, Removed))
            counts = self._state.counts
            counts["blocks_removed"] += removed
            counts["blocks_evicted"] = counts["blocks_removed"] - counts["blocks_dropped"]
            self._state.out.append(PublishBlocks(events))
