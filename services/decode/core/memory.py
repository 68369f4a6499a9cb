"""Pages of sequences: reserved together, grown one by one, given back whole.

A page that the running step still writes is kept until the step ends; one under an unfinished
read goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Run

from services.decode.core.desk import Desk
from services.decode.core.forecast import Forecast
from services.decode.core.rules import pages_for
from services.decode.core.sequences import Sequence, Stage
from shared.ids import PageId
from shared.kv.cache import HeldPage


class Memory:
    """The only part that grants, releases and quarantines pages."""

    def __init__(self, desk: Desk, forecast: Forecast | None) -> None:
        self._desk = desk
        self._forecast = forecast
        self._cache = desk.cache
        self.after_step: list[HeldPage] = []
        """Pages of ended sequences that the step in flight may still write."""
        self.unfinished: dict[PageId, HeldPage] = {}
        """Pages in quarantine: a read may still write them."""

    def awaits_seal(self, sequence: Sequence) -> bool:
        """Whether the next block that it lacks is about to be found in the cache: then it would
        compute in vain what another sequence has just computed."""
        sequence.name_blocks()
        if not self._desk.sealing:
            return False
        names = sequence.names[: self.reusable_blocks(sequence)]
        found = self._cache.peek(names)
        return found < len(names) and names[found] in self._desk.sealing

    def can_reserve(self, sequence: Sequence, without: Run[Sequence] = ()) -> bool:
        """Whether `reserve` would succeed right now, or once these others were parked."""
        held = self._hold_cached(sequence, without)
        if held is None:
            return False
        self._cache.release([page.page for page in held])
        return True

    def reserve(self, sequence: Sequence) -> bool:
        """Take what is cached and grant the rest, plus one page to grow; all or nothing."""
        held = self._hold_cached(sequence)
        if held is None:
            return False
        granted = self._grant(self.wanted_pages(sequence) - len(held), 0)
        if granted is None:
            raise AssertionError(f"no pages where there was room for {sequence.key}")
        sequence.set_pages((*held, *granted))
        sequence.sealed = len(held)
        sequence.kv_tokens = len(held) * sequence.block_tokens
        return True

    def refresh(self, sequence: Sequence) -> None:
        """Right before its first chunk: take over blocks that others have sealed meanwhile."""
        sealed, size = sequence.sealed, sequence.block_tokens
        if sequence.chunks or sequence.holes or sequence.kv_tokens != sealed * size:
            return
        sequence.name_blocks()
        names = sequence.names[: self.reusable_blocks(sequence)]
        if self._cache.peek(names) <= sealed:
            return
        found = self._cache.match(names)
        spare = [page for page in sequence.pages[sealed : len(found)] if page is not None]
        self._cache.release([page.page for page in (*found[:sealed], *spare)])
        for position in range(sealed, len(found)):
            sequence.set_page(position, found[position])
        sequence.sealed = len(found)
        sequence.kv_tokens = len(found) * size
        sequence.cached_tokens = min(sequence.kv_tokens, sequence.prompt_tokens)

    def take_over(self, sequence: Sequence, positions: Run[int]) -> tuple[int, ...]:
        """Blocks that others have sealed meanwhile replace the sequence's own empty pages. The
        positions where that was so."""
        found = self._cache.match(sequence.names[: max(positions) + 1])
        taken = tuple(position for position in positions if position < len(found))
        spare = [page for at in taken if (page := sequence.pages[at]) is not None]
        rest = [page for at, page in enumerate(found) if at not in taken]
        for position in taken:
            sequence.set_page(position, found[position])
        self._cache.release([page.page for page in (*spare, *rest)])
        return taken

    def wanted_pages(self, sequence: Sequence) -> int:
        """For all tokens there are and one page more; after some preemptions, for all that can
        ever be."""
        if sequence.preemptions >= self._desk.rules.preemptions:
            return sequence.worst_pages
        present = pages_for(len(sequence.tokens), sequence.block_tokens)
        return min(present + 1, sequence.worst_pages)

    def ensure(self, sequence: Sequence, start: int, stop: int) -> bool:
        """See that positions [start, stop) have pages. False: not enough available."""
        size = sequence.block_tokens
        pages, there = sequence.pages, len(sequence.pages)
        lacking = [
            position
            for position in range(start // size, -(-stop // size))
            if position >= there or pages[position] is None
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
        if self.after_step:
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

    def reusable_blocks(self, sequence: Sequence) -> int:
        """Blocks that may come from the cache. Who computes the prompt itself must keep its
        last position: something has to draw the next token."""
        tokens = len(sequence.tokens)
        return (tokens if sequence.awaits_prefill else tokens - 1) // sequence.block_tokens

    def _hold_cached(
        self, sequence: Sequence, without: Run[Sequence] = ()
    ) -> tuple[HeldPage, ...] | None:
        """A reference on each cached page, if there is room for all that the sequence wants."""
        sequence.name_blocks()
        names = sequence.names[: self.reusable_blocks(sequence)]
        others = [s for s in self._desk.sequences.values() if s is not sequence and s.pages]
        staying = [other for other in others if other not in without]
        freed = len(_pages(others) - _pages(staying)) if without else 0
        need = self.wanted_pages(sequence)
        room = self._cache.available + freed - self._headroom(staying)
        if room < need and room < need - self._cache.peek(names):
            return None
        before = self._cache.available
        held = self._cache.match(names)
        granted = need - len(held)
        room -= before - self._cache.available
        if granted <= room and self._foreseen(sequence, staying, held, granted):
            return held
        self._cache.release([page.page for page in held])
        return None

    def _foreseen(
        self, sequence: Sequence, staying: list[Sequence], held: Run[HeldPage], granted: int
    ) -> bool:
        return self._forecast is None or self._forecast.fits(sequence, staying, held, granted)

    def _headroom(self, others: list[Sequence]) -> int:
        """Without a forecast: one page for each sequence that already runs, so that a newcomer
        does not at once push somebody out."""
        if self._forecast is not None:
            return 0
        return sum(1 for other in others if other.batchable)


def _pages(sequences: list[Sequence]) -> set[PageId]:
    return {page.page for sequence in sequences for page in sequence.pages if page is not None}
