"""The prefix tree of findable blocks: longest match, and which block to forget first.

A name stands for its whole prefix, so a node is found by name alone; the edges serve eviction.
Knows page ids but nothing about who holds a page beyond idle or busy.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from shared.ids import BlockHash, PageId
from shared.kv.hashing import NAME_BYTES, is_block_name
from shared.kv.invariants import require

_DIGEST_MODULUS: Final = 2 ** (8 * NAME_BYTES)
_SLACK: Final = 64
"""Outdated heap entries that are tolerated before the heap is rebuilt."""


@dataclass(frozen=True, slots=True)
class Stored:
    """These blocks, each the parent of the next, can be found now."""

    parent: BlockHash | None
    blocks: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """These blocks can be found no longer."""

    blocks: tuple[BlockHash, ...]


@dataclass(slots=True)
class Node:
    """One findable block."""

    block: BlockHash
    page: PageId
    parent: BlockHash | None
    children: dict[BlockHash, None] = field(default_factory=dict)
    idle_since: int = 0
    """Tick at which it became idle; 0 while somebody holds its page."""


class PrefixTree:
    """Nodes by name, parents always present. LRU over idle leaves: O(log n) to evict."""

    def __init__(self) -> None:
        self._nodes: dict[BlockHash, Node] = {}
        self._idle: dict[BlockHash, None] = {}
        self._leaves: list[tuple[int, BlockHash]] = []
        self._tick = 0
        self._sum = 0
        self._journal: list[tuple[bool, BlockHash | None, list[BlockHash]]] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._nodes

    @property
    def idle(self) -> int:
        """How many nodes nobody holds: all of them can be evicted."""
        return len(self._idle)

    def find(self, hashes: Iterable[BlockHash]) -> list[PageId]:
        """Pages of the longest leading run of `hashes`, each the child of the one before."""
        pages: list[PageId] = []
        previous: BlockHash | None = None
        for block in hashes:
            node = self._nodes.get(block)
            if node is None or (pages and node.parent != previous):
                break
            pages.append(node.page)
            previous = block
        return pages

    def page(self, block: BlockHash) -> PageId | None:
        node = self._nodes.get(block)
        return None if node is None else node.page

    def insert(self, block: BlockHash, parent: BlockHash | None, page: PageId) -> bool:
        """Add a busy node. False when the block is there already or its parent is not."""
        require(is_block_name(block), "not a block name", block)
        if block in self._nodes or (parent is not None and parent not in self._nodes):
            return False
        self._nodes[block] = Node(block, page, parent)
        if parent is not None:
            self._nodes[parent].children[block] = None
        self._sum = (self._sum + int(block, 16)) % _DIGEST_MODULUS
        self._note_stored(block, parent)
        return True

    def set_idle(self, block: BlockHash) -> None:
        """Nobody holds its page now: it may be evicted, most recently used last."""
        node = self._nodes[block]
        self._tick += 1
        node.idle_since = self._tick
        self._idle[block] = None
        self._offer(node)

    def set_busy(self, block: BlockHash) -> None:
        self._nodes[block].idle_since = 0
        del self._idle[block]

    def evict(self) -> list[Node]:
        """Forget the idle leaf that was used least recently, or if every idle node has
        held descendants, the first of those with all below it. Needs `idle > 0`."""
        require(bool(self._idle), "evict without an idle block")
        while self._leaves:
            tick, block = heapq.heappop(self._leaves)
            node = self._nodes.get(block)
            if node is not None and node.idle_since == tick and not node.children:
                return self.remove(block)
        return self.remove(next(iter(self._idle)))

    def remove(self, block: BlockHash) -> list[Node]:
        """Forget a block and everything that builds on it; parents first."""
        removed = [self._nodes[block]]
        for node in removed:
            removed.extend(self._nodes[child] for child in node.children)
        for node in removed:
            del self._nodes[node.block]
            self._idle.pop(node.block, None)
            self._sum = (self._sum - int(node.block, 16)) % _DIGEST_MODULUS
        parent = removed[0].parent
        if parent is not None:
            above = self._nodes[parent]
            del above.children[block]
            self._offer(above)
        self._note_removed([node.block for node in removed])
        return removed

    def blocks(self) -> tuple[BlockHash, ...]:
        """All names, parents before children: a node is inserted after its parent."""
        return tuple(self._nodes)

    def digest(self) -> tuple[int, str]:
        """Number of blocks, and the sum of their names modulo 2^128 in hex."""
        return len(self._nodes), f"{self._sum:032x}"

    def drain(self) -> tuple[Stored | Removed, ...]:
        """What changed since the last call, in order."""
        events = tuple(
            Stored(parent, tuple(blocks)) if stored else Removed(tuple(blocks))
            for stored, parent, blocks in self._journal
        )
        self._journal.clear()
        return events

    def check(self) -> None:
        """Edges, idle set, eviction order and digest follow from the nodes."""
        edges = [(node.parent, block) for block, node in self._nodes.items() if node.parent]
        below = [(block, child) for block, node in self._nodes.items() for child in node.children]
        require(sorted(edges) == sorted(below), "parents and children disagree")
        idle = {block for block, node in self._nodes.items() if node.idle_since}
        require(idle == self._idle.keys(), "the idle set differs from the idle nodes")
        offered = set(self._leaves)
        for block in idle:
            node = self._nodes[block]
            waits = bool(node.children) or (node.idle_since, block) in offered
            require(waits, "an idle leaf cannot be evicted", block)
        total = sum(int(block, 16) for block in self._nodes) % _DIGEST_MODULUS
        require(total == self._sum, "the digest differs from the blocks")

    def _offer(self, node: Node) -> None:
        """Queue an idle leaf for eviction; entries that became untrue are skipped later."""
        if node.idle_since == 0 or node.children:
            return
        heapq.heappush(self._leaves, (node.idle_since, node.block))
        if len(self._leaves) > 2 * len(self._nodes) + _SLACK:
            nodes = [self._nodes[block] for block in self._idle]
            self._leaves = [(n.idle_since, n.block) for n in nodes if not n.children]
            heapq.heapify(self._leaves)

    def _note_stored(self, block: BlockHash, parent: BlockHash | None) -> None:
        if self._journal:
            stored, _, blocks = self._journal[-1]
            if stored and blocks[-1] == parent:
                blocks.append(block)
                return
        self._journal.append((True, parent, [block]))

    def _note_removed(self, gone: list[BlockHash]) -> None:
        if self._journal and not self._journal[-1][0]:
            self._journal[-1][2].extend(gone)
        else:
            self._journal.append((False, None, gone))
