"""One worker's pages as a whole: grants, seals, prefix reuse, leases, quarantine.

Pure: time comes as `now`, readers and writers are told of, never called. Each call changes
all it names or nothing; a caller that breaks the rules gets InvariantError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.ids import BlockHash, Generation, PageId
from shared.kv.blocks import Hold, Page, PageTable, State
from shared.kv.invariants import require
from shared.kv.leases import LeaseBook, LeaseName
from shared.kv.radix import Node, PrefixTree, Removed, Stored

__all__ = ["HeldPage", "LeaseName", "PageCache", "PageCounts", "PageLook", "Removed", "Stored"]


@dataclass(frozen=True, slots=True)
class HeldPage:
    """A page as its holder saw it when it took it. `checksum` is None until sealed."""

    page: PageId
    generation: Generation
    block: BlockHash | None
    """Name of a sealed full block, also when another page answers lookups for it."""
    checksum: int | None


@dataclass(frozen=True, slots=True)
class PageCounts:
    """free + referenced + cached + leased + quarantined = total, always."""

    free: int
    referenced: int
    """Held by a sequence, under no lease."""
    cached: int
    """Findable and held by nobody: evictable."""
    leased: int
    quarantined: int
    """Held by transfers alone: an open read whose lease ended, or a write given up."""
    leases: int
    open_reads: int
    total: int


@dataclass(frozen=True, slots=True)
class PageLook:
    """A page as it is right now, for monitors: nothing is held by looking."""

    generation: Generation
    state: State
    sealed: bool
    checksum: int | None


class PageCache:
    """The pages of one worker. A page is given away only when nobody can read or write it."""

    def __init__(self, pages: int, block_tokens: int) -> None:
        require(block_tokens > 0, f"blocks of {block_tokens} tokens")
        self.block_tokens = block_tokens
        self._table = PageTable(pages)
        self._tree = PrefixTree()
        self._leases = LeaseBook(self._table, self._let_go)

    # -- lookups ---------------------------------------------------------------------------

    def match(self, hashes: Sequence[BlockHash]) -> tuple[HeldPage, ...]:
        """The longest cached leading run of `hashes`, one reference taken on each page.
        `hashes` may start inside a sequence."""
        pages = [self._table[page] for page in self._tree.find(hashes)]
        for page in pages:
            self._hold(page, Hold.REFERENCE)
        return tuple(_seen(page) for page in pages)

    def peek(self, hashes: Sequence[BlockHash]) -> int:
        """How many pages `match` would return; takes nothing and counts as no use."""
        return len(self._tree.find(hashes))

    def holds(self, block: BlockHash) -> bool:
        return block in self._tree

    @property
    def available(self) -> int:
        """Pages that `grant` can give right now: free, or cached without a holder."""
        return self._table.free + self._tree.idle

    # -- life of a page --------------------------------------------------------------------

    def grant(self, count: int) -> tuple[HeldPage, ...] | None:
        """`count` pages with undefined content, a new generation and one reference each; or
        None when fewer are available. Evicts the least recently used leaves first."""
        require(count >= 0, f"grant of {count} pages")
        if count > self.available:
            return None
        while self._table.free < count:
            for node in self._tree.evict():
                self._hide(node)
        return tuple(_seen(self._table.grant()) for _ in range(count))

    def seal(
        self,
        page: PageId,
        checksum: int,
        block: BlockHash | None = None,
        parent: BlockHash | None = None,
    ) -> HeldPage:
        """The content is final. With `block` lookups find it from now on, unless another page
        carries the block or its parent was evicted: then it becomes findable when that has
        changed by the time its last holder lets go, or never."""
        found = self._table.held((page,), Hold.REFERENCE)[0]
        require(not found.sealed, "sealed twice", found)
        require(Hold.WRITE not in found.holds, "sealed while in quarantine", found)
        require(block is not None or parent is None, "parent without a block", found)
        found.sealed, found.checksum = True, checksum
        found.block, found.parent = block, parent
        self._publish(found)
        return _seen(found)

    def retain(self, pages: Sequence[PageId]) -> None:
        """One more reference each, on pages that have one already."""
        for page in self._table.held(pages, Hold.REFERENCE):
            self._table.hold(page, Hold.REFERENCE)

    def release(self, pages: Sequence[PageId]) -> None:
        """Give up one reference each, in the order of the sequence. The last holder leaves a
        findable block in the cache; any other page is free at once."""
        for page in self._table.held(pages, Hold.REFERENCE):
            self._unhold(page, Hold.REFERENCE)

    def quarantine(self, pages: Sequence[PageId]) -> None:
        """Instead of `release`, for pages that something may still write into: they stay out
        of circulation until `settle`. A sealed page cannot go there: nobody writes into it."""
        held = self._table.held(pages, Hold.REFERENCE)
        for page in held:
            require(not page.sealed, "a sealed page cannot be a write target", page)
        for page in held:
            self._table.hold(page, Hold.WRITE)
            self._table.unhold(page, Hold.REFERENCE)

    def settle(self, pages: Sequence[PageId]) -> None:
        """Nothing writes there any more: the end of `quarantine`, once for each."""
        for page in self._table.held(pages, Hold.WRITE):
            self._unhold(page, Hold.WRITE)

    def drop(self, block: BlockHash) -> int:
        """Forget a block whose content proved wrong, with all blocks computed from it; who
        holds such a page keeps it, but lookups never find it again. How many were dropped. What a
        sequence computes from such a page afterwards is wrong too: its owner starts it over."""
        if block not in self._tree:
            return 0
        removed = self._tree.remove(block)
        for node in removed:
            page = self._table[node.page]
            page.block = page.parent = None
            self._hide(node)
        return len(removed)

    # -- leases and reads ------------------------------------------------------------------

    def lease(
        self, key: LeaseName, ticket: str, pages: Sequence[PageId], now: float, ttl_s: float
    ) -> None:
        """Let whoever shows `ticket` read these sealed pages until now + ttl_s, or longer when
        the lease exists and lasts longer. The caller holds a reference on each at this moment."""
        held = self._table.held(tuple(dict.fromkeys(pages)), Hold.REFERENCE)
        for page in held:
            require(page.sealed, "lease on an unsealed page", page)
        self._leases.add(key, ticket, held, now + ttl_s)

    def has_lease(self, key: LeaseName) -> bool:
        """Whether the lease exists; one that is over counts until it was swept."""
        return key in self._leases

    def renew(self, key: LeaseName, now: float, ttl_s: float) -> bool:
        """Extend to now + ttl_s. False: unknown or over, the reader must stop waiting."""
        return self._leases.renew(key, now, ttl_s)

    def end_lease(self, key: LeaseName) -> bool:
        """The normal way out of a lease. False when there is none (any more)."""
        return self._leases.end(key)

    def sweep(self, now: float) -> tuple[LeaseName, ...]:
        """End all leases whose time is over and name them."""
        return self._leases.sweep(now)

    def open_read(
        self, ticket: str, pages: Sequence[tuple[PageId, Generation]], now: float
    ) -> int | None:
        """A read id when `ticket` opens all these pages at these generations, else None.
        The pages stay as they are until `close_read`, even when the lease ends first."""
        return self._leases.open_read(ticket, pages, now)

    def close_read(self, read: int) -> None:
        """The read touches nothing any more. A read that is closed already is ignored."""
        self._leases.close_read(read)

    # -- views -----------------------------------------------------------------------------

    def events(self) -> tuple[Stored | Removed, ...]:
        """What lookups gained and lost since the last call, in order."""
        return self._tree.drain()

    def blocks(self) -> tuple[BlockHash, ...]:
        """Every findable block, parents before children."""
        return self._tree.blocks()

    def digest(self) -> tuple[int, str]:
        """Number of findable blocks, and the sum of their names modulo 2^128 in hex."""
        return self._tree.digest()

    def counts(self) -> PageCounts:
        count = self._table.count
        return PageCounts(
            free=count(State.FREE),
            referenced=count(State.REFERENCED),
            cached=count(State.CACHED),
            leased=count(State.LEASED),
            quarantined=count(State.QUARANTINED),
            leases=len(self._leases),
            open_reads=self._leases.reads,
            total=len(self._table),
        )

    def granted(self) -> tuple[PageId, ...]:
        """All pages that were granted at least once."""
        return tuple(page.page for page in self._table)

    def look(self, page: PageId) -> PageLook:
        """A page that was granted at least once."""
        found = self._table[page]
        return PageLook(found.generation, found.state, found.sealed, found.checksum)

    def references(self) -> dict[PageId, int]:
        """References by page, from scratch: a core's `check` compares them with its sequences."""
        return {
            page.page: page.holds[Hold.REFERENCE]
            for page in self._table
            if Hold.REFERENCE in page.holds
        }

    def check(self) -> None:
        """Re-derive everything from scratch; raises InvariantError with the contradiction."""
        self._table.check()
        self._tree.check()
        self._leases.check()
        findable = {page.block: page for page in self._table if page.findable}
        require(findable.keys() == set(self._tree.blocks()), "findable pages differ from the tree")
        for block, page in findable.items():
            require(block is not None and self._tree.page(block) == page.page, "lost", page)
        require(self._tree.idle == self._table.count(State.CACHED), "idle blocks are miscounted")
        counts = self.counts()
        states = (counts.free, counts.referenced, counts.cached, counts.leased, counts.quarantined)
        require(sum(states) == counts.total and min(states) >= 0, "pages leak", counts)

    # -- one page changes hands ------------------------------------------------------------

    def _hold(self, page: Page, kind: Hold) -> None:
        if page.state is State.CACHED and page.block is not None:
            self._tree.set_busy(page.block)
        self._table.hold(page, kind)

    def _unhold(self, page: Page, kind: Hold) -> None:
        if self._table.unhold(page, kind):
            self._let_go(page)

    def _let_go(self, page: Page) -> None:
        """The last hold ended: keep the block for later lookups, or free the page."""
        self._publish(page)
        if page.findable and page.block is not None:
            self._tree.set_idle(page.block)
        else:
            self._table.free_page(page)

    def _publish(self, page: Page) -> None:
        """Make a named page findable if its block is not there yet and its parent is."""
        if page.block is None or page.findable:
            return
        if self._tree.insert(page.block, page.parent, page.page):
            self._table.show(page, findable=True)

    def _hide(self, node: Node) -> None:
        """The tree forgot this block."""
        page = self._table[node.page]
        self._table.show(page, findable=False)
        if not page.holds:
            self._table.free_page(page)


def _seen(page: Page) -> HeldPage:
    return HeldPage(page.page, page.generation, page.block, page.checksum)
