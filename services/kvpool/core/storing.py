"""Offers: pull what the pool lacks, prove it by its checksums, keep it.

A block is findable only after all its bytes were proved; whatever fails leaves the rest as it was.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from services.kvpool.core.actions import Pull
from services.kvpool.core.events import OfferArrived, PullEnded, PullFailed
from services.kvpool.core.offers import Offer, OfferDesk, chain_of
from services.kvpool.core.state import PoolState
from shared.dataplane.plane import PageRead
from shared.errors import Code
from shared.ids import PageId
from shared.kv.invariants import InvariantError, require
from shared.wire.blocks import BlocksKept, OfferBlocks
from shared.wire.workers import WorkerLost

_REPETITIONS: Final = 8
"""How often one offer may be repeated while its answer is not there."""


class Storing:
    """Offers from arrival to answer, and the pulls under way for them."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._desk = OfferDesk(state.limits.running_offers)
        self._pulls = 0

    @property
    def open(self) -> int:
        """Offers without an answer."""
        return self._desk.waiting + self._desk.running

    def offered(self, event: OfferArrived, now: float) -> None:
        state, message, call = self._state, event.offer, event.call
        blocks = chain_of(message, state.cache.block_tokens)
        same = self._desk.same(message)
        if same is not None and len(same.calls) < _REPETITIONS:
            same.calls.append(call)
            state.counts["offers_repeated"] += 1
        elif message.layout_digest != state.limits.layout_digest:
            state.refuse(call, Code.INCOMPATIBLE_WORKERS, "the pool keeps pages of another layout")
        elif blocks is None:
            state.refuse(call, Code.INVALID_PARAMETER, "the offer is not a chain of full blocks")
        elif state.fenced(message.owner):
            state.refuse(call, Code.STALE, "a newer incarnation of the owner is known")
        elif state.draining:
            state.refuse(call, Code.DRAINING, "the pool node is leaving")
        elif same is not None or self._desk.waiting >= state.limits.waiting_offers:
            state.refuse(call, Code.QUEUE_FULL, "too many offers are waiting")
        else:
            self._desk.add(Offer(message, [call], now, now + event.patience_s, blocks))
            self._note(message, now, f"{message.owner.worker} offers {len(blocks)} blocks")

    def start(self, now: float) -> None:
        """Begin every waiting offer that may run."""
        while (offer := self._desk.next()) is not None:
            message = offer.message
            above = () if message.parent is None else (message.parent,)
            cached = self._state.cache.match((*above, *offer.blocks))
            offer.held = [page.page for page in cached]
            offer.kept = max(0, len(cached) - len(above))
            if len(cached) < len(above):
                self._answer(offer, now, "parent_missing")
            else:
                self._pull_more(offer, now)

    def pulled(self, event: PullEnded, now: float) -> None:
        """Seal what has its checksum, in chain order; the first damaged page ends the offer."""
        state, offer = self._state, self._desk.ended(event.pull)
        if offer is None:
            state.counts["late_pulls"] += 1
            return
        batch, offer.batch = offer.batch, ()
        refs = offer.message.pages[offer.kept :]
        whole = 0
        for target, ref, checksum in zip(batch, refs, event.checksums, strict=False):
            if checksum != ref.checksum:
                break
            parent = offer.blocks[offer.kept - 1] if offer.kept else offer.message.parent
            state.cache.seal(target.page, checksum, ref.block, parent)
            offer.held.append(target.page)
            offer.kept += 1
            whole += 1
        state.cache.release([page.page for page in batch[whole:]])
        offer.pulled += whole
        state.counts["blocks_stored"] += whole
        if whole < len(batch):
            state.counts["blocks_damaged"] += 1
            self._answer(offer, now, "damaged")
        else:
            self._pull_more(offer, now)

    def pull_failed(self, event: PullFailed, now: float) -> None:
        state, offer = self._state, self._desk.ended(event.pull)
        if offer is None:
            state.counts["late_pulls"] += 1
            return
        targets = [page.page for page in offer.batch]
        offer.batch = ()
        if event.settled:
            state.cache.release(targets)
        else:  # bytes may land there as long as this process lives
            state.cache.quarantine(targets)
            state.counts["pages_lost"] += len(targets)
        self._note(offer.message, now, f"pull {event.pull} failed: {event.code}")
        self._answer(offer, now, "pull_failed")

    def owner_lost(self, lost: WorkerLost, now: float) -> None:
        """Waiting offers of a dead incarnation end; a pull from it fails by itself."""
        for offer in self._desk.take_waiting():
            owner = offer.message.owner
            if owner.worker == lost.worker and owner.epoch <= lost.epoch:
                self._answer(offer, now, "owner_lost")
            else:
                self._desk.add(offer)

    def expire(self, now: float) -> None:
        """Waiting offers whose owner has stopped waiting end."""
        for offer in self._desk.take_waiting():
            if offer.gives_up_s <= now:
                self._answer(offer, now, "expired")
            else:
                self._desk.add(offer)

    def leave(self, now: float) -> None:
        """The node drains: what waits is answered, what runs ends with its pull."""
        for offer in self._desk.take_waiting():
            self._answer(offer, now, "draining")

    def check(self) -> None:
        """The references of the cache are exactly the pages of the offers."""
        state, held = self._state, Counter[PageId]()
        for offer in self._desk:
            story = state.diary.story(offer.message.ticket)
            held.update(offer.held)
            held.update(page.page for page in offer.batch)
            require((offer.pull is not None) is bool(offer.batch), f"pull without pages: {story}")
            require(offer.kept <= len(offer.blocks), f"kept more than offered: {story}")
        require(state.cache.references() == dict(held), "references differ from the offers")
        require(self._desk.running <= state.limits.running_offers, "too many offers run")
        require(self._desk.waiting <= state.limits.waiting_offers, "too many offers wait")
        self._desk.check()

    def _pull_more(self, offer: Offer, now: float) -> None:
        """Pull as much of the rest as one read and the free pages allow, or answer."""
        state, message = self._state, offer.message
        wanted = message.pages[offer.kept :][: state.limits.pull_pages]
        left_s = offer.gives_up_s - now
        fits = wanted[: state.cache.available]
        if not wanted:
            self._answer(offer, now, "kept")
        elif state.draining or left_s <= 0:
            self._answer(offer, now, "draining" if state.draining else "expired")
        elif not fits:
            self._answer(offer, now, "full")
        else:
            granted = state.cache.grant(len(fits))
            if granted is None:
                raise InvariantError(f"no pages: {state.diary.story(message.ticket)}")
            offer.batch = granted
            self._pulls += 1
            self._desk.run(offer, self._pulls)
            pairs = zip(fits, granted, strict=True)
            reads = tuple(PageRead(ref.page, ref.generation, page.page) for ref, page in pairs)
            timeout_s = min(state.limits.pull_timeout_s, left_s)
            call, owner = offer.calls[0], message.owner
            state.out.append(Pull(self._pulls, call, owner, message.ticket, reads, timeout_s))
            self._note(message, now, f"pull {self._pulls} of {len(reads)} pages")

    def _answer(self, offer: Offer, now: float, outcome: str) -> None:
        """The offer is over: the owner may let go of its pages, and so do we."""
        state, message = self._state, offer.message
        state.cache.release(offer.held)
        for call in offer.calls:
            state.reply(call, BlocksKept(message.ticket, offer.kept))
        state.counts[f"offers_{outcome}"] += 1
        attributes: dict[str, str | int | float | bool] = {
            "baton.blocks.offered": len(offer.blocks),
            "baton.blocks.held": offer.kept,
            "baton.blocks.pulled": offer.pulled,
            "baton.peer": message.owner.worker,
            "baton.outcome": outcome,
        }
        state.trace(offer.calls[0], "kvpool.store", offer.arrived_s, now, attributes)
        self._note(message, now, f"{outcome}: {offer.kept} of {len(offer.blocks)} blocks held")

    def _note(self, message: OfferBlocks, now: float, text: str) -> None:
        self._state.diary.note(message.ticket, now, text)
