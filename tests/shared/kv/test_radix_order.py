"""Eviction order of the prefix tree against a naive search for the oldest idle leaf."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.ids import BlockHash, PageId
from shared.kv.radix import PrefixTree
from tests.shared.kv.rooms import names

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("put", "use", "rest", "evict")),
        st.lists(st.integers(0, 2), min_size=1, max_size=4),
    ),
    max_size=80,
)


class NaiveTree:
    """What the tree should do, by looking at everything each time."""

    def __init__(self) -> None:
        self.parents: dict[BlockHash, BlockHash | None] = {}
        self.idle_since: dict[BlockHash, int] = {}
        self.clock = 0

    def rest(self, block: BlockHash) -> None:
        self.clock += 1
        self.idle_since[block] = self.clock

    def evict(self) -> list[BlockHash]:
        inner = set(self.parents.values())
        leaves = [block for block in self.idle_since if block not in inner]
        first = min(leaves or self.idle_since, key=self.idle_since.__getitem__)
        return self.forget(first)

    def forget(self, block: BlockHash) -> list[BlockHash]:
        gone = [block]
        for name in gone:
            gone.extend(child for child, parent in self.parents.items() if parent == name)
        for name in gone:
            del self.parents[name]
            self.idle_since.pop(name, None)
        return gone


@settings(max_examples=200)
@given(STEPS)
def test_oldest_idle_leaf_goes_first(steps: list[tuple[str, list[int]]]) -> None:
    tree, naive = PrefixTree(), NaiveTree()
    for number, (verb, path) in enumerate(steps):
        *above, block = names([token for token in path for _ in range(2)])
        parent = above[-1] if above else None
        fits = block not in naive.parents and (parent is None or parent in naive.parents)
        if verb == "put":
            assert tree.insert(block, parent, PageId(number)) is fits
            if fits:
                naive.parents[block] = parent
        elif verb == "use" and block in naive.idle_since:
            tree.set_busy(block)
            del naive.idle_since[block]
        elif verb == "rest" and block in naive.parents and block not in naive.idle_since:
            tree.set_idle(block)
            naive.rest(block)
        elif verb == "evict" and naive.idle_since:
            assert {node.block for node in tree.evict()} == set(naive.evict())
        assert set(tree.blocks()) == naive.parents.keys()
        assert tree.idle == len(naive.idle_since)
        tree.check()
