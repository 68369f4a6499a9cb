"""Pages of sequences: reserved together, grown one by one, given back whole.

A page that the running step still writes is kept until the step ends; one under an unfinished
read goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.decode.core.desk import Desk
from services.decode.core.rules import pages_for
from services.decode.core.sequences import Sequence, Stage
from shared.ids import PageId
from shared.kv.cache import HeldPage


class Memory:
    """The only part that grants, releases and quarantines pages."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._cache = desk.cache
        self.after_step: list[HeldPage] = []
        """Pages of ended sequences that the step in flight may still write."""
        self.unfinished: dict[PageId, HeldPage] = {}
        """Pages in quarantine: a read may still write them."""

    def reserve(self, sequence: Sequence) -> bool:
        """Take what is cached and grant the rest, plus one page to grow; all or nothing."""
        sequence.name_blocks()
        names = sequence.names[: self._reusable_blocks(sequence)]
        need = self._wanted_pages(sequence)
        headroom = self._headroom(sequence)
        if self._cache.available < need - self._cache.peek(names) + headroom:
            return False
        held = self._cache.match(names)
        granted = self._grant(need - len(held), headroom)
        if granted is None:
            self._cache.release([page.page for page in held])
            return False
        for position, page in enumerate((*held, *granted)):
            sequence.set_page(position, page)
        sequence.sealed = len(held)
        sequence.kv_tokens = len(held) * sequence.block_tokens
        return True

    def ensure(self, sequence: Sequence, start: int, stop: int) -> bool:
        """See that positions [start, stop) have pages. False: not enough available."""
        size = sequence.block_tokens
        pages = sequence.pages
        lacking = [
            position
            for position in range(start // size, pages_for(stop, size))
            if position >= len(pages) or pages[position] is None
        ]
        if not lacking:
            return True
        granted = self._grant(len(lacking), 0)
        if granted is None:
            return False
        for position, page in zip(lacking, granted, strict=True):
            sequence.set_page(position, page)
        return True

    def renew_target(self, sequence: Sequence, position: int) -> bool:
        """Give a position another page, because a read that never settled may write the old
        one. False: none available; then the position has no page."""
        old = sequence.pages[position]
        granted = self._grant(1, 0)
        sequence.set_page(position, None if granted is None else granted[0])
        if old is not None:
            self._quarantine([old])
        return granted is not None

    def reopen(self, sequence: Sequence, position: int) -> None:
        """Let go of a sealed page whose block must be computed again."""
        page = sequence.pages[position]
        if page is not None:
            sequence.set_page(position, None)
            self._cache.release([page.page])

    def park(self, sequence: Sequence) -> None:
        """Take everything from a preempted sequence; sealed blocks stay in the cache."""
        self._cache.release([page.page for page in sequence.take_pages()])
        sequence.kv_tokens = sequence.sealed = 0
        sequence.holes.clear()
        sequence.checksums.clear()
        sequence.stage = Stage.PARKED

    def give_back(self, sequence: Sequence, unfinished: Iterable[PageId]) -> int:
        """Take all pages from an ended sequence; how many there were."""
        taken = sequence.take_pages()
        writing = set(unfinished)
        self._quarantine([page for page in taken if page.page in writing])
        rest = [page for page in taken if page.page not in writing]
        if sequence.in_step:
            self.after_step.extend(rest)
        else:
            self._cache.release([page.page for page in rest])
        return len(taken)

    def step_ended(self) -> None:
        self._cache.release([page.page for page in self.after_step])
        self.after_step.clear()

    def settle(self, pages: Iterable[HeldPage]) -> None:
        """Reads into these pages are over for good."""
        for page in pages:
            if self.unfinished.pop(page.page, None) is not None:
                self._cache.settle([page.page])

    def _quarantine(self, pages: list[HeldPage]) -> None:
        self._cache.quarantine([page.page for page in pages])
        self.unfinished.update((page.page, page) for page in pages)

    def _grant(self, count: int, headroom: int) -> tuple[HeldPage, ...] | None:
        if self._cache.available < count + headroom:
            return None
        return self._cache.grant(max(count, 0))

    def _reusable_blocks(self, sequence: Sequence) -> int:
        """Blocks that may come from the cache. Who computes the prompt itself must keep its
        last position: something has to draw the next token."""
        tokens = len(sequence.tokens)
        return (tokens if sequence.awaits_prefill else tokens - 1) // sequence.block_tokens

    def _wanted_pages(self, sequence: Sequence) -> int:
        if sequence.preemptions >= self._desk.rules.preemptions:
            return sequence.worst_pages
        present = pages_for(len(sequence.tokens), sequence.block_tokens)
        return min(present + 1, sequence.worst_pages)

    def _headroom(self, newcomer: Sequence) -> int:
        """One page for each sequence that already runs, so that a newcomer does not at once
        push somebody out."""
        return sum(
            1
            for other in self._desk.sequences.values()
            if other.batchable and other is not newcomer
        )
