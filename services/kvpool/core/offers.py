"""Offers of blocks under way: what each still wants, and which may run at the same time.

Knows no pages and no messages to send; the machine moves the bytes and answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.ids import BlockHash, PageId
from shared.kv.cache import HeldPage
from shared.kv.hashing import is_block_name
from shared.kv.invariants import require
from shared.wire.blocks import OfferBlocks


@dataclass(slots=True, eq=False)
class Offer:
    """One offer from its arrival to its answer."""

    message: OfferBlocks
    calls: list[int]
    """Requests that wait for the answer: the first, and repetitions of it."""
    arrived_s: float
    gives_up_s: float
    blocks: tuple[BlockHash, ...]
    held: list[PageId] = field(default_factory=list)
    """Pages of its chain that it keeps from eviction, its parent's among them."""
    kept: int = 0
    """How many of `blocks`, from the first, the pool holds."""
    pulled: int = 0
    batch: tuple[HeldPage, ...] = ()
    """Targets of the pull under way."""
    pull: int | None = None


def chain_of(message: OfferBlocks, block_tokens: int) -> tuple[BlockHash, ...] | None:
    """The names of the offered blocks, or None when they are not full blocks in a row that
    starts at position 0 or after `parent`."""
    blocks = [page.block for page in message.pages if page.block is not None]
    first = message.pages[0].position if message.pages else 0
    positions = [page.position for page in message.pages]
    names = blocks if message.parent is None else [message.parent, *blocks]
    whole = (
        first >= 0
        and (first == 0) is (message.parent is None)
        and positions == list(range(first, first + len(positions)))
        and len(blocks) == len(positions)
        and len(set(names)) == len(names)
        and all(page.tokens == block_tokens for page in message.pages)
        and all(is_block_name(name) for name in names)
    )
    return tuple(blocks) if whole else None


class OfferDesk:
    """Offers in order of arrival, a bounded number of them running.

    Two offers that want one block never run together: the later waits, then finds it held.
    """

    def __init__(self, running_limit: int) -> None:
        self._running_limit = running_limit
        self._waiting: list[Offer] = []
        self._running: dict[int, Offer] = {}
        self._wanted: set[BlockHash] = set()

    def __iter__(self) -> Iterator[Offer]:
        yield from self._running.values()
        yield from self._waiting

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def same(self, message: OfferBlocks) -> Offer | None:
        """The offer that this message repeats."""
        owner = message.owner
        for offer in self:
            known = offer.message
            if known.ticket == message.ticket and known.owner == owner:
                return offer
        return None

    def add(self, offer: Offer) -> None:
        self._waiting.append(offer)

    def next(self) -> Offer | None:
        """Take the first waiting offer that may run now."""
        if len(self._running) >= self._running_limit:
            return None
        for index, offer in enumerate(self._waiting):
            chain = {*offer.blocks, offer.message.parent}
            if self._wanted.isdisjoint(chain):
                return self._waiting.pop(index)
        return None

    def run(self, offer: Offer, pull: int) -> None:
        """The offer has a pull under way; until `finish` nobody else pulls its blocks."""
        offer.pull = pull
        self._running[pull] = offer
        self._wanted.update(offer.blocks[offer.kept :])

    def ended(self, pull: int) -> Offer | None:
        """The offer whose pull this is, which now has none."""
        offer = self._running.pop(pull, None)
        if offer is not None:
            offer.pull = None
            self._wanted.difference_update(offer.blocks)
        return offer

    def take_waiting(self) -> list[Offer]:
        """All waiting offers, in order; `add` those that go on waiting."""
        taken, self._waiting = self._waiting, []
        return taken

    def check(self) -> None:
        """Nobody else pulls what a running offer wants."""
        wanted = [block for offer in self._running.values() for block in offer.blocks[offer.kept :]]
        require(len(wanted) == len(set(wanted)), "two offers pull one block")
        require(set(wanted) == self._wanted, "wanted blocks differ from the running offers")
