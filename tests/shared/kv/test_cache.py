"""PageCache by example: reuse, eviction, quarantine, and the public faults it must not have."""

from __future__ import annotations

from itertools import permutations

import pytest

from shared.ids import Attempt, BlockHash, PageId, RequestId
from shared.kv.cache import PageCache, Removed, Stored
from shared.kv.invariants import InvariantError
from shared.kv.leases import LeaseName
from tests.shared.kv.rooms import BLOCK_TOKENS, checksum, compute, ids, names, put

NAME = LeaseName(RequestId("r"), Attempt(1))


def cache_of(pages: int) -> PageCache:
    return PageCache(pages, BLOCK_TOKENS)


# -- reuse ---------------------------------------------------------------------------------


def test_a_sealed_prefix_is_found_while_held_and_afterwards() -> None:
    cache = cache_of(8)
    held = compute(cache, range(6))
    blocks = names(range(6))
    assert cache.peek(blocks) == 3
    cache.release(held)
    again = cache.match((*blocks, *names([9, 9])))
    assert ids(again) == held
    assert [page.checksum for page in again] == [checksum(block) for block in blocks]
    assert cache.holds(blocks[2])
    cache.check()


def test_an_unsealed_page_is_invisible() -> None:
    cache = cache_of(4)
    assert cache.grant(2) is not None
    assert cache.peek(names(range(4))) == 0
    assert cache.blocks() == ()


def test_second_page_of_a_block_stays_private() -> None:
    cache = cache_of(4)
    block = names(range(2))[0]
    pages = cache.grant(2)
    assert pages is not None
    cache.seal(pages[0].page, 1, block)
    twin = cache.seal(pages[1].page, 1, block)
    assert twin.block == block
    assert cache.blocks() == (block,)
    cache.release(ids(pages))
    assert cache.counts().cached == 1
    cache.check()


def test_private_twin_takes_over_when_the_first_was_evicted() -> None:
    cache = cache_of(3)
    block = names(range(2))[0]
    first, twin = cache.grant(2) or ()
    cache.seal(first.page, 1, block)
    cache.seal(twin.page, 1, block)
    cache.release([first.page])
    assert cache.grant(2) is not None
    assert not cache.holds(block)
    cache.release([twin.page])
    assert cache.holds(block)
    cache.check()


def test_child_of_an_evicted_parent_stays_private() -> None:
    cache = cache_of(4)
    parent, child = names(range(4))
    mine = cache.grant(1) or ()
    put(cache, range(2))
    assert cache.grant(3) is not None
    sealed = cache.seal(mine[0].page, 1, child, parent)
    assert sealed.block == child
    assert not cache.holds(child)
    cache.release(ids(mine))
    assert cache.counts().free == 1
    cache.check()


def test_br_007_prompt_of_whole_blocks_keeps_its_chain() -> None:
    cache = cache_of(16)
    prompt = list(range(8))
    put(cache, prompt)
    put(cache, prompt)
    longer = cache.match(names([*prompt, 50, 51, 52, 53]))
    assert len(longer) == len(prompt) // BLOCK_TOKENS
    cache.check()


@pytest.mark.parametrize("name", ["ab12", "", "zz" * 16])
def test_br_004_a_shortened_name_never_enters_the_index(name: str) -> None:
    cache = cache_of(2)
    page = (cache.grant(1) or ())[0]
    with pytest.raises(InvariantError, match="not a block name"):
        cache.seal(page.page, 1, BlockHash(name))


def test_br_004_a_block_under_another_parent_is_no_hit() -> None:
    """Were two prefixes ever to collide in one name, the edge to the parent still differs."""
    cache = cache_of(4)
    put(cache, range(4))
    other = names([7, 7])[0]
    put(cache, [7, 7])
    assert len(cache.match((other, names(range(4))[1]))) == 1


# -- eviction ------------------------------------------------------------------------------


def test_eviction_takes_the_oldest_leaf_and_never_a_parent_first() -> None:
    cache = cache_of(4)
    put(cache, [1, 1, 2, 2])
    put(cache, [1, 1, 3, 3])
    cache.release(ids(cache.match(names([1, 1, 2, 2]))))
    cache.events()
    assert cache.grant(2) is not None
    assert cache.events() == (Removed((names([1, 1, 3, 3])[1],)),)
    assert cache.blocks() == names([1, 1, 2, 2])
    assert cache.grant(2) is not None
    assert cache.blocks() == ()
    cache.check()


def test_grant_is_all_or_nothing() -> None:
    cache = cache_of(4)
    held = compute(cache, range(4))
    put(cache, [9, 9])
    before = cache.counts()
    assert cache.grant(3) is None
    assert cache.counts() == before
    assert cache.available == 2
    assert cache.grant(0) == ()
    assert len(cache.grant(2) or ()) == 2
    assert set(held).isdisjoint(ids(cache.match(names([9, 9]))))
    cache.check()


def test_generation_grows_at_each_grant() -> None:
    cache = cache_of(1)
    seen = []
    for _ in range(3):
        page = (cache.grant(1) or ())[0]
        seen.append(page.generation)
        cache.release([page.page])
    assert seen == [1, 2, 3]


def test_idle_parent_of_a_held_block_can_still_be_evicted() -> None:
    """A sequence that computed its own copy of a parent holds the child only."""
    cache = cache_of(3)
    parent, child = names(range(4))
    first, twin, mine = cache.grant(3) or ()
    cache.seal(first.page, 1, parent)
    cache.seal(twin.page, 1, parent)
    cache.seal(mine.page, 1, child, parent)
    cache.release([first.page])
    assert cache.available == 1
    assert ids(cache.grant(1) or ()) == [first.page]
    assert cache.blocks() == ()
    cache.release([twin.page, mine.page])
    assert cache.blocks() == (parent, child)
    cache.check()


def test_br_016_idle_blocks_never_stop_new_ones() -> None:
    cache = cache_of(8)
    for start in range(40):
        put(cache, [start] * 6)
        cache.check()
    assert cache.counts().cached == 8


def test_eviction_queue_stays_bounded_without_eviction() -> None:
    cache = cache_of(8)
    for _ in range(2_000):
        put(cache, range(8))
    assert len(cache._tree._leaves) <= 2 * 4 + 64 + 1


# -- drop and events -----------------------------------------------------------------------


def test_dropped_block_takes_its_descendants_and_never_comes_back() -> None:
    cache = cache_of(6)
    held = compute(cache, range(6))
    assert cache.drop(names(range(6))[1]) == 2
    assert cache.drop(names(range(6))[1]) == 0
    assert cache.blocks() == names(range(2))
    cache.release(held)
    assert cache.blocks() == names(range(2))
    assert cache.counts().free == 5
    cache.check()


def test_events_tell_chains_and_removals_in_order() -> None:
    cache = cache_of(3)
    put(cache, range(4))
    put(cache, [8, 8])
    first, second = names(range(4))
    assert cache.events() == (
        Stored(None, (first, second)),
        Stored(None, names([8, 8])),
    )
    assert cache.grant(2) is not None
    assert cache.events() == (Removed((second, first)),)
    assert cache.events() == ()


def test_digest_is_the_sum_of_the_names() -> None:
    cache = cache_of(4)
    put(cache, range(4))
    total = sum(int(block, 16) for block in names(range(4))) % 2**128
    assert cache.digest() == (2, f"{total:032x}")
    assert cache.grant(4) is not None
    assert cache.digest() == (0, "0" * 32)


# -- counts --------------------------------------------------------------------------------


def test_br_012_double_release_is_a_hard_error_and_changes_nothing() -> None:
    cache = cache_of(4)
    held = compute(cache, range(4))
    cache.release(held)
    before = cache.counts()
    for wrong in ([held[0]], [held[1], held[1]], [PageId(3)], [PageId(99)], [PageId(-1)]):
        with pytest.raises(InvariantError):
            cache.release(wrong)
    assert cache.counts() == before
    once = compute(cache, range(4))
    with pytest.raises(InvariantError):
        cache.release([once[0], once[0]])
    assert cache.references() == dict.fromkeys(once, 1)
    cache.check()


def test_br_014_unused_part_of_a_lookup_is_never_freed_and_listed() -> None:
    cache = cache_of(10)
    put(cache, range(20))
    found = ids(cache.match(names(range(20))))
    cache.release(found[6:])
    again = cache.match(names(range(20)))
    assert len(again) == 10
    cache.release(ids(again))
    cache.release(found[:6])
    assert cache.grant(10) is not None
    assert cache.blocks() == ()
    cache.check()


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_br_015_any_order_of_letting_go_frees_exactly_once(order: tuple[int, ...]) -> None:
    cache = cache_of(2)
    held = compute(cache, range(2))
    cache.retain(held)
    cache.lease(NAME, "ticket", held, now=0.0, ttl_s=30.0)
    read = cache.open_read("ticket", [(held[0], cache.match(names(range(2)))[0].generation)], 1.0)
    assert read is not None
    cache.release(held)
    steps = (
        lambda: cache.release(held),
        lambda: cache.release(held),
        lambda: cache.end_lease(NAME),
        lambda: cache.close_read(read),
    )
    for position, step in enumerate(order):
        assert cache.counts().cached == 0, position
        steps[step]()
        cache.check()
    assert cache.counts().cached == 1
    assert cache.grant(2) is not None


def test_br_017_partial_failure_keeps_nothing() -> None:
    cache = cache_of(12)
    put(cache, range(20))
    cache.drop(names(range(20))[5])
    baseline = cache.counts()
    for _ in range(1_000):
        found = cache.match(names(range(20)))
        assert len(found) == 5
        assert cache.grant(8) is None
        with pytest.raises(InvariantError):
            cache.retain([*ids(found), PageId(11)])
        with pytest.raises(InvariantError):
            cache.lease(NAME, "ticket", [*ids(found), PageId(11)], now=0.0, ttl_s=1.0)
        cache.release(ids(found))
    assert cache.counts() == baseline
    cache.check()


def test_references_are_told_for_a_cores_own_check() -> None:
    cache = cache_of(4)
    held = compute(cache, range(4))
    cache.retain(held[:1])
    assert cache.references() == {held[0]: 2, held[1]: 1}


# -- seals and quarantine ------------------------------------------------------------------


def test_quarantined_page_is_not_granted_before_it_settles() -> None:
    cache = cache_of(2)
    pages = ids(cache.grant(2) or ())
    cache.quarantine(pages[:1])
    cache.release(pages[1:])
    assert cache.available == 1
    assert cache.grant(2) is None
    assert cache.counts().quarantined == 1
    cache.settle(pages[:1])
    assert cache.available == 2
    with pytest.raises(InvariantError):
        cache.settle(pages[:1])
    cache.check()


def test_page_in_quarantine_cannot_be_sealed_and_a_sealed_one_cannot_go_there() -> None:
    cache = cache_of(2)
    torn, whole = ids(cache.grant(2) or ())
    cache.retain([torn])
    cache.quarantine([torn])
    with pytest.raises(InvariantError, match="quarantine"):
        cache.seal(torn, 1)
    cache.seal(whole, 1)
    with pytest.raises(InvariantError, match="write target"):
        cache.quarantine([whole])
    cache.check()


def test_seal_happens_once_and_by_a_holder() -> None:
    cache = cache_of(2)
    page = (cache.grant(1) or ())[0].page
    cache.seal(page, 5)
    with pytest.raises(InvariantError, match="twice"):
        cache.seal(page, 5)
    with pytest.raises(InvariantError):
        cache.seal(PageId(1), 5)
    cache.release([page])
    assert cache.counts().free == 2
