"""Any event in any state: nothing leaks, nothing is answered twice, nothing false is found."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from services.kvpool.core.events import (
    DrainBegun,
    PeerLost,
    PullEnded,
    PullFailed,
    ReadEnded,
    Ticked,
)
from shared.ids import Epoch
from shared.wire.blocks import BlocksFound, OfferBlocks
from shared.wire.requests import WorkerRef
from shared.wire.workers import WorkerLost
from tests.services.kvpool.rig import OTHER, PREFILL, Rig, chain, checksum, offer

PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=6)
OWNERS = st.sampled_from((PREFILL, OTHER))
PICK = st.integers(0, 10**6)


class PoolWeather(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(pages=7, running_offers=2, waiting_offers=3, leases=3, pull_pages=2)
        self.offers: dict[str, OfferBlocks] = {}
        self.reads: list[int] = []
        self.tickets: list[str] = []
        self.lookups: dict[int, int] = {}

    @rule(path=PATHS, owner=OWNERS, start=st.integers(0, 3), patience_s=st.floats(0.0, 20.0))
    def offer(self, path: list[int], owner: WorkerRef, start: int, patience_s: float) -> None:
        blocks = chain(*path)
        first = min(start, len(blocks) - 1)
        ticket = f"o{len(self.offers)}"
        parent = blocks[first - 1] if first else None
        message = offer(blocks[first:], first=first, parent=parent, owner=owner, ticket=ticket)
        self.offers[ticket] = message
        self.rig.offer(message, patience_s)

    @precondition(lambda self: self.offers)
    @rule(pick=PICK)
    def repeat_offer(self, pick: int) -> None:
        self.rig.offer(list(self.offers.values())[pick % len(self.offers)])

    @precondition(lambda self: self.rig.pulls)
    @rule(pick=PICK, damage=st.booleans(), twice=st.booleans())
    def land(self, pick: int, damage: bool, twice: bool) -> None:
        pull = self.rig.pulls.pop(pick % len(self.rig.pulls))
        sums = {ref.page: ref.checksum for ref in self.offers[pull.ticket].pages}
        landed = [sums[read.source] for read in pull.reads]
        if damage:
            landed[pick % len(landed)] ^= 1
        for _ in range(1 + twice):
            self.rig.feed(PullEnded(pull.pull, tuple(landed)))

    @precondition(lambda self: self.rig.pulls)
    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        pull = self.rig.pulls.pop(pick % len(self.rig.pulls))
        self.rig.feed(PullFailed(pull.pull, settled=True, code="transfer_failed"))

    @rule(path=PATHS, start=st.integers(0, 2))
    def lookup(self, path: list[int], start: int) -> None:
        blocks = chain(*path)[start:]
        reply = self.rig.replies[self.rig.lookup(blocks, first=start)]
        if isinstance(reply, BlocksFound) and reply.pages:
            assert [ref.block for ref in reply.pages] == list(blocks[: len(reply.pages)])
            assert all(ref.checksum == checksum(ref.block) for ref in reply.pages if ref.block)
            pages = [(ref.page, ref.generation) for ref in reply.pages]
            read = self.rig.machine.open_read(reply.ticket, pages, self.rig.now)
            assert read is not None
            self.reads.append(read)
            self.tickets.append(reply.ticket)

    @precondition(lambda self: self.reads)
    @rule(pick=PICK)
    def close_read(self, pick: int) -> None:
        self.rig.feed(ReadEnded(self.reads.pop(pick % len(self.reads))))
        self.rig.machine.check()

    @precondition(lambda self: self.tickets)
    @rule(pick=PICK, owner=OWNERS, path=PATHS)
    def release(self, pick: int, owner: WorkerRef, path: list[int]) -> None:
        ticket = self.tickets[pick % len(self.tickets)]
        self.rig.release(ticket, owner, corrupted=chain(*path)[-1:])

    @rule(seconds=st.sampled_from((0.5, 10.0, 30.0)))
    def tick(self, seconds: float) -> None:
        self.rig.now += seconds
        self.rig.feed(Ticked())

    @rule(owner=OWNERS, older=st.integers(0, 1))
    def lose(self, owner: WorkerRef, older: int) -> None:
        epoch = Epoch(owner.epoch - older)
        self.rig.feed(PeerLost(WorkerLost(owner.worker, "prefill", epoch, Epoch(1), "silent")))

    def teardown(self) -> None:
        """Faults stop: every call gets its answer and nothing is held."""
        self.rig.feed(DrainBegun())
        while self.rig.pulls:
            self.fail(0)
        for read in self.reads:
            self.rig.feed(ReadEnded(read))
        self.rig.now += 60.0
        self.rig.feed(Ticked())
        assert self.rig.at_baseline()
        assert self.rig.replies.keys() == set(range(1, self.rig.calls + 1))


PoolWeather.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolWeather = PoolWeather.TestCase
