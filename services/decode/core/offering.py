"""Blocks of a sequence that may soon have to give way are offered to the pool, while it still runs.

An offer only ever helps: it takes no page from anyone, and giving way does not wait for it.
"""

from __future__ import annotations

from typing import Final

from services.decode.core.actions import Offer
from services.decode.core.desk import Desk
from services.decode.core.events import OfferEnded
from services.decode.core.sequences import Sequence, Stage
from shared.ids import RequestId
from shared.kv.cache import HeldPage
from shared.kv.leases import LeaseName
from shared.wire.blocks import OfferBlocks
from shared.wire.requests import LeaseKey, PageRef

_AT_ONCE: Final = 2
_PAGES_EACH: Final = 2
"""Memory counts as short when fewer pages than this are left for each running sequence."""
_LEAST_BLOCKS: Final = 4
"""Fewer new blocks are not worth a message."""
_MOST_BLOCKS: Final = 2048
_TRIES: Final = 3


class Offering:
    """Open offers and the leases that keep their pages readable."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.open: dict[LeaseName, Sequence] = {}

    @property
    def short(self) -> bool:
        """Whether somebody may have to give way before long."""
        sequences = self._desk.sequences
        available = self._desk.cache.available
        if available >= _PAGES_EACH * len(sequences):
            return False
        running = sum(1 for s in sequences.values() if s.batchable)
        return running > 1 and available < _PAGES_EACH * running

    def offer(self, sequence: Sequence, now: float) -> None:
        """Offer what was sealed since the last time, if there is a pool and anything to offer."""
        pool, rules, name = sequence.job.kvpool, self._desk.rules, _name(sequence.key)
        if pool is None or not sequence.ticket or not rules.layout_digest:
            return
        if name in self.open or len(self.open) >= _AT_ONCE or sequence.offers >= _TRIES:
            return
        first, held = sequence.kept_blocks, _sealed_run(sequence)
        last = min(len(held), first + _MOST_BLOCKS)
        if last - first < _LEAST_BLOCKS:
            return
        refs = tuple(_ref(at, held[at], sequence.block_tokens) for at in range(first, last))
        pages = [ref.page for ref in refs]
        self._desk.cache.lease(name, sequence.ticket, pages, now, rules.lease_s)
        self.open[name] = sequence
        sequence.offers += 1
        message = OfferBlocks(
            owner=rules.me,
            ticket=sequence.ticket,
            namespace=sequence.job.namespace,
            layout_digest=rules.layout_digest,
            pages=refs,
            parent=held[first - 1].block if first else None,
        )
        self._desk.out.append(Offer(*sequence.key_pair, pool, message))

    def ended(self, event: OfferEnded) -> None:
        """The pool is done with the pages, or cannot be reached."""
        name = _name(LeaseKey(event.request, event.attempt))
        sequence = self.open.get(name)
        if sequence is None:
            self._desk.counts["ignored"] += 1
            return
        if event.kept:
            self._desk.counts["blocks_kept"] += event.kept
            sequence.kept_blocks += event.kept
            sequence.offers = 0
        self._end(name)

    def withdraw(self, sequence: Sequence) -> None:
        """Its pages are needed now. A read that has begun still ends first."""
        name = _name(sequence.key)
        if name in self.open:
            self._end(name)

    def withdraw_idle(self) -> bool:
        """End offers of sequences that ended. False: there is none."""
        over = [name for name, sequence in self.open.items() if sequence.stage is Stage.ENDED]
        for name in over:
            self._end(name)
        return bool(over)

    def withdraw_all(self) -> None:
        for name in tuple(self.open):
            self._end(name)

    def sweep(self, now: float) -> None:
        for name in self._desk.cache.sweep(now):
            self.open.pop(name, None)

    def _end(self, name: LeaseName) -> None:
        del self.open[name]
        self._desk.cache.end_lease(name)


def _name(key: LeaseKey) -> LeaseName:
    return LeaseName(RequestId(f"{key.request}/offer"), key.attempt)


def _sealed_run(sequence: Sequence) -> list[HeldPage]:
    """Leading pages that carry their block's name and checksum."""
    run: list[HeldPage] = []
    if sequence.stage is Stage.ENDED:
        return run
    for page in sequence.pages[: sequence.sealed]:
        if page is None or page.checksum is None or page.block is None:
            break
        run.append(page)
    return run


def _ref(position: int, held: HeldPage, block_tokens: int) -> PageRef:
    return PageRef(
        position=position,
        page=held.page,
        generation=held.generation,
        tokens=block_tokens,
        checksum=held.checksum or 0,
        block=held.block,
    )
