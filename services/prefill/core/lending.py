"""Blocks that other prefill workers copy from here instead of computing them.

A loan is a lease on the leading run of what was asked for. It is over when its reader says so, is
lost, or lets it run out; nothing here waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

from services.prefill.core.events import LoanReturned, LookupArrived
from services.prefill.core.state import State
from shared.errors import Code
from shared.ids import Attempt, BlockHash, RequestId
from shared.kv.cache import HeldPage
from shared.kv.invariants import InvariantError, require
from shared.kv.leases import LeaseName
from shared.wire.blocks import BlocksFound
from shared.wire.requests import Acknowledged, PageRef, Refused, WorkerRef
from shared.wire.workers import WorkerLost


class Loan(NamedTuple):
    """Who reads, and which blocks."""

    reader: WorkerRef
    blocks: tuple[BlockHash, ...]


class Lending:
    """Loans by lease."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._loans: dict[LeaseName, Loan] = {}

    def __len__(self) -> int:
        return len(self._loans)

    def asked(self, event: LookupArrived, now: float) -> BlocksFound | Refused:
        """The blocks that are here, readable with the event's ticket; or why none is lent."""
        state, lookup = self._state, event.lookup
        if lookup.layout_digest != state.limits.layout_digest:
            return Refused(Code.INCOMPATIBLE_WORKERS, "pages here have another layout")
        if state.draining:
            return Refused(Code.DRAINING, "the worker is draining")
        if len(self._loans) >= state.limits.loan_limit:
            return Refused(Code.QUEUE_FULL, "too many readers")
        held = state.cache.match(lookup.blocks)
        if not held:
            return BlocksFound(state.me, "", 0.0, ())
        pages = [page.page for page in held]
        name, lease_s = _lease(event.ticket), state.limits.lease_s
        state.cache.lease(name, event.ticket, pages, now, lease_s)
        state.cache.release(pages)
        self._loans[name] = Loan(lookup.reader, lookup.blocks[: len(held)])
        state.counts["blocks_lent"] += len(held)
        refs = tuple(_ref(page, at, state) for at, page in enumerate(held, lookup.first_position))
        return BlocksFound(state.me, event.ticket, lease_s, refs)

    def returned(self, event: LoanReturned) -> Acknowledged:
        """The reader is done. Its own word alone counts, also about damaged blocks."""
        state, release = self._state, event.release
        name = _lease(release.ticket)
        loan = self._loans.get(name)
        if loan is None or loan.reader.worker != release.reader:
            state.counts["late_events"] += 1
            return Acknowledged()
        self._end(name)
        for block in set(release.corrupted).intersection(loan.blocks):
            state.counts["blocks_dropped"] += state.cache.drop(block)
        return Acknowledged()

    def reader_lost(self, lost: WorkerLost) -> None:
        for name, loan in tuple(self._loans.items()):
            if loan.reader.worker == lost.worker and loan.reader.epoch <= lost.epoch:
                self._end(name)

    def sweep(self) -> None:
        """Forget those whose lease ran out."""
        for name in tuple(self._loans):
            if not self._state.cache.has_lease(name):
                del self._loans[name]

    def end_all(self) -> None:
        for name in tuple(self._loans):
            self._end(name)

    def check(self) -> None:
        """Every loan has its lease. Raises InvariantError."""
        for name in self._loans:
            require(self._state.cache.has_lease(name), f"loan {name} has no lease")

    def _end(self, name: LeaseName) -> None:
        del self._loans[name]
        self._state.cache.end_lease(name)


def _lease(ticket: str) -> LeaseName:
    """A lookup has no request of its own: its ticket names the lease."""
    return LeaseName(RequestId(f"{ticket}/loan"), Attempt(1))


def _ref(page: HeldPage, position: int, state: State) -> PageRef:
    if page.checksum is None:
        raise InvariantError(f"found before its seal: {page}")
    size = state.limits.block_tokens
    return PageRef(position, page.page, page.generation, size, page.checksum, page.block)
