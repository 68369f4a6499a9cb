"""The pages of one worker: who holds each of them, its generation, and its seal.

A page is free when nobody holds it and no lookup can find it. Knows no prefixes and no time.

    grant (generation + 1)            seal, lease                  last hold ends
 free ────────────────► referenced ──────────────► leased ───────────────────► cached
  ▲                         │ only transfers hold it   │                          │
  │                         └──────► quarantined ◄─────┘                    evict │
  └───────────────────────────────────────┴───────────────────────────────────────┘
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Final

from shared.ids import BlockHash, Generation, PageId
from shared.kv.invariants import InvariantError, require

_NEVER_GRANTED: Final = Generation(0)


class Hold(IntEnum):
    """Why a page may not be given away."""

    REFERENCE = auto()
    """A sequence, or a caller between two calls, uses it."""
    LEASE = auto()
    """A peer may open a read of it."""
    READ = auto()
    """A read by a peer is open."""
    WRITE = auto()
    """A transfer or a step that its owner gave up may still write into it."""


class State(IntEnum):
    """What a page counts as; each page is in exactly one."""

    FREE = auto()
    REFERENCED = auto()
    CACHED = auto()
    LEASED = auto()
    QUARANTINED = auto()


@dataclass(slots=True)
class Page:
    """One slot. Only `PageTable` and `PageCache` write its fields."""

    page: PageId
    generation: Generation = _NEVER_GRANTED
    holds: dict[Hold, int] = field(default_factory=dict)
    """Counts above zero only."""
    sealed: bool = False
    checksum: int | None = None
    block: BlockHash | None = None
    """Name of the content, once sealed; kept also while no lookup finds it."""
    parent: BlockHash | None = None
    findable: bool = False
    state: State = State.FREE
    """Follows from `holds` and `findable`; kept because it is asked more often than it moves."""

    def derived_state(self) -> State:
        """What `state` has to be."""
        if not self.holds:
            return State.CACHED if self.findable else State.FREE
        if Hold.LEASE in self.holds:
            return State.LEASED
        return State.REFERENCED if Hold.REFERENCE in self.holds else State.QUARANTINED


class PageTable:
    """Hands out pages, lowest id first so that runs of neighbours stay likely. Costs memory only
    for pages that were granted once."""

    def __init__(self, total: int) -> None:
        require(total >= 0, f"page table of {total} pages")
        self._total = total
        self._pages: list[Page] = []
        self._free: list[PageId] = []
        self._states = dict.fromkeys(State, 0)
        self._states[State.FREE] = total

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[Page]:
        """Pages that were granted at least once."""
        return iter(self._pages)

    def __getitem__(self, page: PageId) -> Page:
        if not 0 <= page < len(self._pages):
            raise InvariantError(f"a page that was never granted: {page}")
        return self._pages[page]

    @property
    def free(self) -> int:
        return len(self._free) + self._total - len(self._pages)

    def count(self, state: State) -> int:
        return self._states[state]

    def grant(self) -> Page:
        """A free page with one reference and a new generation."""
        require(self.free > 0, "grant without a free page")
        if self._free:
            page = self._pages[heapq.heappop(self._free)]
        else:
            page = Page(PageId(len(self._pages)))
            self._pages.append(page)
        page.generation = Generation(page.generation + 1)
        self.hold(page, Hold.REFERENCE)
        return page

    def hold(self, page: Page, kind: Hold) -> None:
        count = page.holds.get(kind, 0)
        page.holds[kind] = count + 1
        if not count:
            self._moved(page)

    def unhold(self, page: Page, kind: Hold) -> bool:
        """Give up one hold. True when nobody holds the page any more: cache or free it now."""
        count = page.holds.get(kind, 0)
        require(count > 0, "no such hold to give up", kind, page)
        if count > 1:
            page.holds[kind] = count - 1
            return False
        del page.holds[kind]
        self._moved(page)
        return not page.holds

    def show(self, page: Page, findable: bool) -> None:
        """Lookups can (no longer) find the page."""
        page.findable = findable
        self._moved(page)

    def free_page(self, page: Page) -> None:
        """Back to the free pages; what it held is forgotten."""
        require(page.state is State.FREE, "freed while in use", page)
        page.sealed, page.checksum = False, None
        page.block = page.parent = None
        heapq.heappush(self._free, page.page)

    def held(self, pages: Sequence[PageId], kind: Hold) -> list[Page]:
        """The pages, after checking that each has as many `kind` holds as it is named."""
        found = [self[page] for page in pages]
        once = len(set(pages)) == len(pages)
        wanted = {} if once else Counter(pages)
        for page in found:
            count, least = page.holds.get(kind, 0), 1 if once else wanted[page.page]
            if count < least:
                raise InvariantError(f"page {page.page} has {count} {kind.name}, {least} named")
        return found

    def check(self) -> None:
        """Every page is in one state, the counters agree, and free pages are truly free."""
        states = Counter(page.derived_state() for page in self._pages)
        states[State.FREE] += self._total - len(self._pages)
        for state, count in self._states.items():
            require(states[state] == count, f"{state.name}: counted {count}, are {states[state]}")
        free = [page.page for page in self._pages if page.state is State.FREE]
        require(sorted(self._free) == free, "the free list differs from the free pages")
        for page in self._pages:
            require(page.state is page.derived_state(), "a state of the past", page)
            require(all(count > 0 for count in page.holds.values()), "empty hold", page)
            require(page.sealed or page.block is None, "named before its seal", page)
            require(page.block is not None or not page.findable, "found without name", page)
            require(not (page.findable and Hold.WRITE in page.holds), "found torn", page)
            require(page.generation > 0, "never granted", page)

    def _moved(self, page: Page) -> None:
        """Its holds or its findability changed."""
        before, after = page.state, page.derived_state()
        if before is not after:
            page.state = after
            self._states[before] -= 1
            self._states[after] += 1
