"""A pool machine joined to a list, with owners of blocks that deliver as a test says."""

from __future__ import annotations

from collections.abc import Sequence

from services.kvpool.core.actions import Action, PublishBlocks, Pull, Reply, Traced
from services.kvpool.core.events import (
    Event,
    LookupArrived,
    OfferArrived,
    PullEnded,
    ReleaseArrived,
)
from services.kvpool.core.machine import PoolMachine
from services.kvpool.core.state import PoolLimits
from shared.ids import BlockHash, Epoch, Generation, PageId, WorkerId
from shared.kv.cache import PageCache, Removed, Stored
from shared.kv.hashing import CacheIdentity, block_hashes
from shared.wire.blocks import BlocksFound, BlocksKept, LookupBlocks, OfferBlocks, ReleaseBlocks
from shared.wire.codec import Message
from shared.wire.requests import PageRef, WorkerRef

BLOCK_TOKENS = 4
LAYOUT = "layout-of-tests"
POOL = WorkerRef(WorkerId("kvpool-0"), Epoch(1), "pool-plane")
PREFILL = WorkerRef(WorkerId("prefill-0"), Epoch(3), "prefill-plane")
OTHER = WorkerRef(WorkerId("prefill-1"), Epoch(5), "other-plane")
IDENTITY = CacheIdentity("tenant", "model", "tokenizer", "float32", BLOCK_TOKENS)


def chain(*path: int) -> tuple[BlockHash, ...]:
    """Names of a prompt whose blocks are told apart by one number each."""
    return block_hashes(IDENTITY, [number for number in path for _ in range(BLOCK_TOKENS)])


def checksum(block: BlockHash) -> int:
    return int(block[:15], 16)


def offer(
    blocks: Sequence[BlockHash],
    *,
    first: int = 0,
    parent: BlockHash | None = None,
    owner: WorkerRef = PREFILL,
    ticket: str = "offer-ticket",
    layout: str = LAYOUT,
) -> OfferBlocks:
    """An offer of sealed full blocks at consecutive positions."""
    pages = tuple(
        PageRef(
            position=first + index,
            page=PageId(100 + index),
            generation=Generation(7),
            tokens=BLOCK_TOKENS,
            checksum=checksum(block),
            block=block,
        )
        for index, block in enumerate(blocks)
    )
    return OfferBlocks(owner, ticket, "tenant", layout, pages, parent)


class Rig:
    """Feeds events, runs `check` after each, and sorts the actions."""

    def __init__(self, pages: int = 16, **limits: float) -> None:
        defaults: dict[str, float] = {"lease_s": 30.0, "pull_pages": 4}
        self.limits = PoolLimits(LAYOUT, **{**defaults, **limits})  # type: ignore[arg-type]
        self.machine = PoolMachine(POOL, PageCache(pages, BLOCK_TOKENS), self.limits)
        self.now = 0.0
        self.calls = 0
        self.replies: dict[int, Message] = {}
        self.pulls: list[Pull] = []
        self.traced: list[Traced] = []
        self.published: list[Stored | Removed] = []
        self.replica: set[BlockHash] = set()

    def feed(self, event: Event) -> list[Action]:
        actions = self.machine.handle(event, self.now)
        self.machine.check()
        for action in actions:
            match action:
                case Reply(call, message):
                    assert call not in self.replies, f"call {call} was answered twice"
                    self.replies[call] = message
                case Pull():
                    self.pulls.append(action)
                case Traced():
                    self.traced.append(action)
                case PublishBlocks(events):
                    self.published += events
                    for change in events:
                        stored = isinstance(change, Stored)
                        assert all((block in self.replica) is not stored for block in change.blocks)
                        self.replica ^= set(change.blocks)
        assert self.replica == set(self.machine.cache.blocks())
        return actions

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def offer(self, message: OfferBlocks, patience_s: float = 60.0) -> int:
        call = self.call()
        self.feed(OfferArrived(call, message, patience_s))
        return call

    def deliver(self, message: OfferBlocks, damaged: Sequence[BlockHash] = ()) -> None:
        """Let the oldest pull under way land, with `damaged` blocks flipped."""
        pull = self.pulls.pop(0)
        assert pull.ticket == message.ticket
        sums = {ref.page: ref.checksum ^ (ref.block in damaged) for ref in message.pages}
        self.feed(PullEnded(pull.pull, tuple(sums[read.source] for read in pull.reads)))

    def store(self, blocks: Sequence[BlockHash]) -> None:
        """Put a chain from position 0 into the pool."""
        message = offer(blocks, ticket=f"store-{self.calls}")
        call = self.offer(message)
        while call not in self.replies:
            self.deliver(message)

    def lookup(self, blocks: Sequence[BlockHash], first: int = 0, ticket: str = "") -> int:
        call = self.call()
        message = LookupBlocks(PREFILL, LAYOUT, tuple(blocks), first)
        self.feed(LookupArrived(call, message, ticket or f"lookup-{call}"))
        return call

    def found(self, call: int) -> BlocksFound:
        reply = self.replies[call]
        assert isinstance(reply, BlocksFound)
        return reply

    def kept(self, call: int) -> int:
        reply = self.replies[call]
        assert isinstance(reply, BlocksKept)
        return reply.kept

    def release(
        self, ticket: str, reader: WorkerRef = PREFILL, corrupted: Sequence[BlockHash] = ()
    ) -> None:
        message = ReleaseBlocks(reader.worker, ticket, tuple(corrupted))
        self.feed(ReleaseArrived(self.call(), message))

    def at_baseline(self) -> bool:
        counts = self.machine.cache.counts()
        return self.machine.at_rest and counts.free + counts.cached == counts.total
