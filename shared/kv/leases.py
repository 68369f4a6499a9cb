"""Leases on sealed pages and the reads that peers have open under them.

A lease is a duration on the owner's monotonic clock. It is over at its last instant, whether or
not a sweep has come by; a read that was opened before goes on and keeps its pages to the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.ids import Attempt, Generation, PageId, RequestId
from shared.kv.blocks import Hold, Page, PageTable
from shared.kv.invariants import require


class LeaseName(NamedTuple):
    """A lease belongs to one attempt of one request."""

    request: RequestId
    attempt: Attempt


@dataclass(slots=True)
class Lease:
    """Pages that whoever shows `ticket` may read until `expires_s`."""

    ticket: str
    expires_s: float
    pages: dict[PageId, Generation] = field(default_factory=dict)


class LeaseBook:
    """All leases and open reads. `let_go` is told of each page that lost its last hold."""

    def __init__(self, table: PageTable, let_go: Callable[[Page], None]) -> None:
        self._table = table
        self._let_go = let_go
        self._leases: dict[LeaseName, Lease] = {}
        self._tickets: dict[str, LeaseName] = {}
        self._reads: dict[int, tuple[Page, ...]] = {}
        self._last_read = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, name: LeaseName) -> bool:
        return name in self._leases

    @property
    def reads(self) -> int:
        return len(self._reads)

    def add(self, name: LeaseName, ticket: str, pages: Sequence[Page], expires_s: float) -> None:
        """Open a lease, or extend one by pages and time. A lease never changes its ticket."""
        lease = self._leases.get(name)
        if lease is None:
            require(ticket != "", "lease without a ticket", name)
            require(ticket not in self._tickets, "lease reuses a ticket", name)
            lease = self._leases[name] = Lease(ticket, expires_s)
            self._tickets[ticket] = name
        require(lease.ticket == ticket, "lease changes its ticket", name)
        lease.expires_s = max(lease.expires_s, expires_s)
        for page in pages:
            if page.page not in lease.pages:
                lease.pages[page.page] = page.generation
                self._table.hold(page, Hold.LEASE)

    def renew(self, name: LeaseName, now: float, ttl_s: float) -> bool:
        """False when the lease is unknown or over: its reader must stop waiting."""
        lease = self._leases.get(name)
        if lease is None or lease.expires_s <= now:
            return False
        lease.expires_s = max(lease.expires_s, now + ttl_s)
        return True

    def end(self, name: LeaseName) -> bool:
        """Give up the lease's holds; False when it was not there."""
        lease = self._leases.pop(name, None)
        if lease is None:
            return False
        del self._tickets[lease.ticket]
        for page_id in lease.pages:
            self._unhold(self._table[page_id], Hold.LEASE)
        return True

    def sweep(self, now: float) -> tuple[LeaseName, ...]:
        """End every lease whose time is over. Visits all: renewal breaks the order of expiry."""
        over = tuple(name for name, lease in self._leases.items() if lease.expires_s <= now)
        for name in over:
            self.end(name)
        return over

    def open_read(
        self, ticket: str, pages: Sequence[tuple[PageId, Generation]], now: float
    ) -> int | None:
        """A read of leased pages at these generations, or None when any of it is not so."""
        name = self._tickets.get(ticket)
        lease = None if name is None else self._leases[name]
        if lease is None or lease.expires_s <= now or not pages:
            return None
        if any(lease.pages.get(page) != generation for page, generation in pages):
            return None
        opened = tuple(self._table[page] for page in dict(pages))
        for page in opened:
            self._table.hold(page, Hold.READ)
        self._last_read += 1
        self._reads[self._last_read] = opened
        return self._last_read

    def close_read(self, read: int) -> bool:
        """The read touches nothing any more. False (and no effect) when it was closed before."""
        opened = self._reads.pop(read, None)
        for page in opened or ():
            self._unhold(page, Hold.READ)
        return opened is not None

    def check(self) -> None:
        """Each lease and read is counted on its pages, and leased pages kept their content."""
        leased = Counter(page for lease in self._leases.values() for page in lease.pages)
        read = Counter(page.page for pages in self._reads.values() for page in pages)
        for page in self._table:
            require(
                page.holds.get(Hold.LEASE, 0) == leased[page.page], "leases are miscounted", page
            )
            require(page.holds.get(Hold.READ, 0) == read[page.page], "reads are miscounted", page)
        for name, lease in self._leases.items():
            require(self._tickets.get(lease.ticket) == name, "lost ticket", name)
            for page_id, generation in lease.pages.items():
                page = self._table[page_id]
                require(page.sealed, "leased before its seal", name, page)
                require(page.generation == generation, "leased and reused", name, page)
        require(len(self._tickets) == len(self._leases), "tickets without a lease")

    def _unhold(self, page: Page, kind: Hold) -> None:
        if self._table.unhold(page, kind):
            self._let_go(page)
