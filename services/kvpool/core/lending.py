"""Lookups: lend the longest held run of blocks under a lease, until the reader is done.

A block that is lent is not evicted; a reader that says nothing loses the lease with time.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.kvpool.core.events import LookupArrived, ReleaseArrived
from services.kvpool.core.state import PoolState
from shared.errors import Code
from shared.ids import Attempt, BlockHash, RequestId
from shared.kv.cache import HeldPage
from shared.kv.invariants import InvariantError, require
from shared.kv.leases import LeaseName
from shared.wire.blocks import BlocksFound, LookupBlocks
from shared.wire.requests import Acknowledged, PageRef, WorkerRef
from shared.wire.workers import WorkerLost


@dataclass(frozen=True, slots=True)
class Loan:
    """Who reads under a lease, and which blocks."""

    reader: WorkerRef
    blocks: tuple[BlockHash, ...]


class Lending:
    """Leases by ticket."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._loans: dict[LeaseName, Loan] = {}

    def asked(self, event: LookupArrived, now: float) -> None:
        state, lookup, call = self._state, event.lookup, event.call
        if lookup.layout_digest != state.limits.layout_digest:
            state.refuse(call, Code.INCOMPATIBLE_WORKERS, "the pool keeps pages of another layout")
        elif state.fenced(lookup.reader):
            state.refuse(call, Code.STALE, "a newer incarnation of the reader is known")
        elif state.draining:
            state.refuse(call, Code.DRAINING, "the pool node is leaving")
        elif len(self._loans) >= state.limits.leases:
            state.refuse(call, Code.QUEUE_FULL, "too many readers")
        else:
            found = self._lend(lookup, event.ticket, now)
            state.reply(call, found)
            state.counts["lookups_hit" if found.pages else "lookups_missed"] += 1
            state.counts["blocks_found"] += len(found.pages)
            attributes: dict[str, str | int | float | bool] = {
                "baton.blocks.asked": len(lookup.blocks),
                "baton.blocks.found": len(found.pages),
                "baton.peer": lookup.reader.worker,
            }
            state.trace(call, "kvpool.lookup", now, now, attributes)

    def released(self, event: ReleaseArrived, now: float) -> None:
        """The reader is done. Its own word alone counts, also about damaged blocks."""
        state, release = self._state, event.release
        name = _lease_name(release.ticket)
        loan = self._loans.get(name)
        if loan is None or loan.reader.worker != release.reader:
            state.counts["late_releases"] += 1
        else:
            self._end(name, now, "released")
            damaged = set(release.corrupted)
            for block in loan.blocks:
                dropped = state.cache.drop(block) if block in damaged else 0
                state.counts["blocks_damaged"] += dropped > 0
                state.counts["blocks_dropped"] += dropped
        state.reply(event.call, Acknowledged())

    def reader_lost(self, lost: WorkerLost, now: float) -> None:
        for name, loan in tuple(self._loans.items()):
            if loan.reader.worker == lost.worker and loan.reader.epoch <= lost.epoch:
                self._end(name, now, "reader lost")

    def expire(self, now: float) -> None:
        for name in self._state.cache.sweep(now):
            self._state.counts["leases_expired"] += 1
            self._end(name, now, "expired")

    def check(self) -> None:
        state = self._state
        leases = state.cache.counts().leases
        require(leases == len(self._loans), f"{leases} leases for {len(self._loans)} readers")
        require(leases <= state.limits.leases, "too many leases")
        for name in self._loans:
            story = state.diary.story(name.request)
            require(state.cache.has_lease(name), f"lost lease: {story}")

    def _lend(self, lookup: LookupBlocks, ticket: str, now: float) -> BlocksFound:
        state = self._state
        pages = state.cache.match(lookup.blocks)
        if not pages:
            return BlocksFound(state.owner, "", 0.0, ())
        ids = [page.page for page in pages]
        name = _lease_name(ticket)
        state.cache.lease(name, ticket, ids, now, state.limits.lease_s)
        state.cache.release(ids)
        self._loans[name] = Loan(lookup.reader, lookup.blocks[: len(pages)])
        state.diary.note(ticket, now, f"lends {len(pages)} blocks to {lookup.reader.worker}")
        refs = tuple(
            _ref(page, lookup.first_position + index, state.cache.block_tokens)
            for index, page in enumerate(pages)
        )
        return BlocksFound(state.owner, ticket, state.limits.lease_s, refs)

    def _end(self, name: LeaseName, now: float, why: str) -> None:
        del self._loans[name]
        self._state.cache.end_lease(name)
        self._state.diary.note(name.request, now, f"lease ended: {why}")


def _ref(page: HeldPage, position: int, block_tokens: int) -> PageRef:
    if page.checksum is None:
        raise InvariantError(f"found before its seal: {page}")
    return PageRef(position, page.page, page.generation, block_tokens, page.checksum, page.block)


def _lease_name(ticket: str) -> LeaseName:
    """A lookup has no request of its own: its ticket names the lease."""
    return LeaseName(RequestId(ticket), Attempt(1))
