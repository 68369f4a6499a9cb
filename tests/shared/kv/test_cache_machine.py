"""PageCache against a small model, over random lives of sequences, leases, reads and writes.

The model knows who holds each page and what it holds. It does not know which block is evicted
next; it demands that whatever is granted was held by nobody and whatever is found is right.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.ids import Attempt, BlockHash, Generation, PageId, RequestId
from shared.kv.cache import HeldPage, PageCache, Removed, Stored
from shared.kv.leases import LeaseName
from tests.shared.kv.rooms import BLOCK_TOKENS, checksum, ids, names

PAGES = 12
TTL_S = 10.0
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(
    lambda blocks: [token for token in blocks for _ in range(BLOCK_TOKENS)]
)
PICK = st.integers(0, 10**6)


class Model:
    """Who holds which page, by plain counting."""

    def __init__(self) -> None:
        self.references: Counter[PageId] = Counter()
        self.writes: Counter[PageId] = Counter()
        self.generations: Counter[PageId] = Counter()
        self.leases: dict[LeaseName, tuple[float, dict[PageId, Generation]]] = {}
        self.reads: dict[int, list[PageId]] = {}
        self.bad: set[tuple[PageId, Generation]] = set()
        self.replica: set[BlockHash] = set()

    def held(self) -> set[PageId]:
        leased = [page for _, pages in self.leases.values() for page in pages]
        reading = [page for pages in self.reads.values() for page in pages]
        return {*(+self.references), *(+self.writes), *leased, *reading}

    def granted(self, page: HeldPage) -> None:
        assert page.page not in self.held(), f"{page} was given away while in use"
        self.generations[page.page] += 1
        assert page.generation == self.generations[page.page]
        self.references[page.page] += 1

    def found(self, page: HeldPage, block: BlockHash) -> None:
        assert page.block == block
        assert page.checksum == checksum(block)
        assert page.generation == self.generations[page.page]
        assert (page.page, page.generation) not in self.bad, "a dropped block came back"
        self.references[page.page] += 1

    def follow(self, events: tuple[Stored | Removed, ...]) -> None:
        for event in events:
            for block in event.blocks:
                assert (block in self.replica) is isinstance(event, Removed)
            if isinstance(event, Stored):
                assert event.parent is None or event.parent in self.replica
            self.replica ^= set(event.blocks)


class Sequence:
    """A prompt under way: its pages in order, of which `sealed` are final."""

    def __init__(self, blocks: tuple[BlockHash, ...], pages: list[HeldPage], sealed: int) -> None:
        self.blocks, self.pages, self.sealed = blocks, pages, sealed
        self.name = LeaseName(RequestId(f"r{id(self)}"), Attempt(1))


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = PageCache(PAGES, BLOCK_TOKENS)
        self.model = Model()
        self.sequences: list[Sequence] = []
        self.parked: list[PageId] = []
        self.now = 0.0

    @rule(prompt=PROMPTS)
    def start(self, prompt: list[int]) -> None:
        blocks = names(prompt)
        cached = self.cache.match(blocks)
        for page, block in zip(cached, blocks, strict=False):
            self.model.found(page, block)
        free = PAGES - len(self.model.held())
        assert self.cache.available == free
        granted = self.cache.grant(len(blocks) - len(cached))
        if granted is None:
            assert len(blocks) - len(cached) > free
            self.cache.release(ids(cached))
            self.model.references.subtract(ids(cached))
            return
        for page in granted:
            self.model.granted(page)
        self.sequences.append(Sequence(blocks, [*cached, *granted], len(cached)))

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK)
    def seal_next(self, pick: int) -> None:
        sequence = self.sequences[pick % len(self.sequences)]
        index = sequence.sealed
        if index == len(sequence.blocks):
            return
        block, parent = sequence.blocks[index], sequence.blocks[index - 1] if index else None
        self.cache.seal(sequence.pages[index].page, checksum(block), block, parent)
        sequence.sealed += 1

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK)
    def lease(self, pick: int) -> None:
        sequence = self.sequences[pick % len(self.sequences)]
        pages = sequence.pages[: sequence.sealed]
        ticket = str(sequence.name)
        self.cache.lease(sequence.name, ticket, ids(pages), self.now, TTL_S)
        expires_s, leased = self.model.leases.get(sequence.name, (0.0, {}))
        leased |= {page.page: page.generation for page in pages}
        self.model.leases[sequence.name] = (max(expires_s, self.now + TTL_S), leased)

    @precondition(lambda self: self.model.leases)
    @rule(pick=PICK, end=st.booleans())
    def renew_or_end(self, pick: int, end: bool) -> None:
        name = list(self.model.leases)[pick % len(self.model.leases)]
        expires_s, leased = self.model.leases[name]
        if end:
            assert self.cache.end_lease(name)
            del self.model.leases[name]
        elif self.cache.renew(name, self.now, TTL_S):
            assert expires_s > self.now
            self.model.leases[name] = (self.now + TTL_S, leased)
        else:
            assert expires_s <= self.now

    @rule(seconds=st.sampled_from((1.0, 6.0, TTL_S)), sweep=st.booleans())
    def pass_time(self, seconds: float, sweep: bool) -> None:
        self.now += seconds
        if sweep:
            over = {name for name, (at, _) in self.model.leases.items() if at <= self.now}
            assert set(self.cache.sweep(self.now)) == over
            for name in over:
                del self.model.leases[name]

    @precondition(lambda self: self.model.leases)
    @rule(pick=PICK, stale=st.booleans())
    def open_read(self, pick: int, stale: bool) -> None:
        name = list(self.model.leases)[pick % len(self.model.leases)]
        expires_s, leased = self.model.leases[name]
        pages = [(page, Generation(generation + stale)) for page, generation in leased.items()]
        read = self.cache.open_read(str(name), pages, self.now)
        assert (read is not None) is (bool(pages) and not stale and expires_s > self.now)
        if read is not None:
            self.model.reads[read] = list(leased)

    @precondition(lambda self: self.model.reads)
    @rule(pick=PICK)
    def close_read(self, pick: int) -> None:
        read = list(self.model.reads)[pick % len(self.model.reads)]
        self.cache.close_read(read)
        del self.model.reads[read]
        self.cache.close_read(read)

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK, writer=st.booleans())
    def end_sequence(self, pick: int, writer: bool) -> None:
        """Its unsealed pages may still be written into: then they go to quarantine."""
        sequence = self.sequences.pop(pick % len(self.sequences))
        pages = ids(sequence.pages)
        torn = pages[sequence.sealed :] if writer else []
        self.cache.quarantine(torn)
        self.cache.release(pages[: len(pages) - len(torn)])
        self.model.references.subtract(pages)
        self.model.writes.update(torn)
        self.parked += torn

    @precondition(lambda self: self.parked)
    @rule(pick=PICK)
    def settle(self, pick: int) -> None:
        page = self.parked.pop(pick % len(self.parked))
        self.cache.settle([page])
        self.model.writes[page] -= 1

    @precondition(lambda self: self.cache.blocks())
    @rule(pick=PICK)
    def drop(self, pick: int) -> None:
        block = self.cache.blocks()[pick % len(self.cache.blocks())]
        page = self.cache.match([block])[0]
        self.cache.release([page.page])
        assert self.cache.drop(block) >= 1
        self.model.bad.add((page.page, page.generation))

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        self.model.follow(self.cache.events())
        assert set(self.cache.blocks()) == self.model.replica
        assert self.cache.references() == dict(+self.model.references)
        counts = self.cache.counts()
        assert counts.free + counts.cached == PAGES - len(self.model.held())
        assert (counts.leases, counts.open_reads) == (len(self.model.leases), len(self.model.reads))

    def teardown(self) -> None:
        """Everything ends: nothing may stay behind."""
        while self.sequences:
            self.end_sequence(0, writer=False)
        while self.parked:
            self.settle(0)
        for read in list(self.model.reads):
            self.cache.close_read(read)
        self.cache.sweep(self.now + 2 * TTL_S)
        self.cache.check()
        assert self.cache.available == PAGES


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
