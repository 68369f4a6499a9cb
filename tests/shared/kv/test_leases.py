"""Leases, tickets and open reads: who may read a page, and when it may be given away."""

from __future__ import annotations

import pytest

from shared.ids import Attempt, Generation, PageId, RequestId
from shared.kv.cache import PageCache
from shared.kv.invariants import InvariantError
from shared.kv.leases import LeaseName
from tests.shared.kv.rooms import BLOCK_TOKENS, compute

ONE = LeaseName(RequestId("one"), Attempt(1))
TWO = LeaseName(RequestId("two"), Attempt(1))
FIRST = Generation(1)


def leased(pages: int = 4, ttl_s: float = 30.0) -> tuple[PageCache, list[PageId]]:
    cache = PageCache(pages, BLOCK_TOKENS)
    held = compute(cache, range(4))
    cache.lease(ONE, "ticket", held, now=0.0, ttl_s=ttl_s)
    cache.release(held)
    return cache, held


def test_leased_pages_are_not_evicted() -> None:
    cache, held = leased()
    assert cache.available == 2
    assert cache.grant(3) is None
    assert cache.counts().leased == len(held)
    assert cache.end_lease(ONE)
    assert not cache.end_lease(ONE)
    assert cache.available == 4
    cache.check()


def test_chunks_join_one_lease_and_a_page_counts_once() -> None:
    cache = PageCache(4, BLOCK_TOKENS)
    held = compute(cache, range(6))
    cache.lease(ONE, "ticket", held[:2], now=0.0, ttl_s=10.0)
    cache.lease(ONE, "ticket", held, now=5.0, ttl_s=10.0)
    cache.release(held)
    assert cache.sweep(14.0) == ()
    assert cache.sweep(15.0) == (ONE,)
    assert cache.counts().cached == 3
    cache.check()


def test_lease_needs_sealed_held_pages_and_its_own_ticket() -> None:
    cache = PageCache(4, BLOCK_TOKENS)
    held = compute(cache, range(2))
    bare = (cache.grant(1) or ())[0].page
    cache.lease(ONE, "ticket", held, now=0.0, ttl_s=1.0)
    for name, ticket, pages in (
        (ONE, "other", held),
        (TWO, "ticket", held),
        (TWO, "", held),
        (TWO, "mine", [bare]),
        (TWO, "mine", [PageId(3)]),
    ):
        with pytest.raises(InvariantError):
            cache.lease(name, ticket, pages, now=0.0, ttl_s=1.0)
        cache.check()
    assert not cache.has_lease(TWO)


def test_renewal_breaks_the_order_of_expiry() -> None:
    cache, held = leased(ttl_s=10.0)
    again = ids = cache.match(cache.blocks())
    cache.lease(TWO, "second", [page.page for page in again], now=1.0, ttl_s=10.0)
    cache.release([page.page for page in ids])
    assert cache.renew(ONE, now=9.0, ttl_s=10.0)
    assert cache.sweep(12.0) == (TWO,)
    assert cache.counts().leased == len(held)
    cache.check()


def test_renewal_of_what_is_over_or_unknown_says_gone() -> None:
    cache, _ = leased(ttl_s=10.0)
    assert cache.renew(ONE, now=9.9, ttl_s=10.0)
    assert not cache.renew(ONE, now=19.9, ttl_s=10.0)
    assert not cache.renew(TWO, now=1.0, ttl_s=10.0)
    assert cache.has_lease(ONE)
    assert cache.sweep(19.9) == (ONE,)
    assert not cache.has_lease(ONE)


def test_renewal_never_shortens() -> None:
    cache, _ = leased(ttl_s=100.0)
    assert cache.renew(ONE, now=1.0, ttl_s=1.0)
    assert cache.sweep(99.0) == ()


def test_open_read_keeps_a_page_beyond_its_lease() -> None:
    cache, held = leased(pages=2)
    read = cache.open_read("ticket", [(held[0], FIRST)], 1.0)
    assert read is not None
    cache.end_lease(ONE)
    assert cache.available == 1
    assert cache.counts().quarantined == 1
    cache.check()
    cache.close_read(read)
    cache.close_read(read)
    assert cache.available == 2
    assert cache.counts().open_reads == 0
    cache.check()


def test_page_under_a_late_read_is_still_found_by_others() -> None:
    cache, held = leased(pages=2)
    cache.open_read("ticket", [(page, FIRST) for page in held], 1.0)
    cache.end_lease(ONE)
    assert [page.page for page in cache.match(cache.blocks())] == held
    assert cache.counts().referenced == 2
    cache.check()


@pytest.mark.parametrize(
    ("ticket", "pages", "now"),
    [
        ("", [(0, 1)], 1.0),
        ("forged", [(0, 1)], 1.0),
        ("ticket", [], 1.0),
        ("ticket", [(0, 2)], 1.0),
        ("ticket", [(0, 1), (3, 1)], 1.0),
        ("ticket", [(0, 1), (10**12, 1)], 1.0),
        ("ticket", [(-1, 1)], 1.0),
        ("ticket", [(0, 1)], 30.0),
    ],
    ids=["empty", "forged", "nothing", "generation", "foreign", "beyond", "negative", "expired"],
)
def test_br_025_forged_reads_are_refused(
    ticket: str, pages: list[tuple[PageId, Generation]], now: float
) -> None:
    cache, _ = leased()
    before = cache.counts()
    assert cache.open_read(ticket, pages, now) is None
    assert cache.counts() == before


def test_br_019_every_page_of_an_expired_lease_is_refused_before_the_sweep() -> None:
    cache, held = leased(ttl_s=0.5)
    assert all(cache.open_read("ticket", [(page, FIRST)], 0.6) is None for page in held)
    assert cache.open_read("ticket", [(page, FIRST) for page in held], 0.6) is None


def test_page_named_twice_in_a_read_is_held_once() -> None:
    cache, held = leased()
    read = cache.open_read("ticket", [(held[0], FIRST)] * 5, 1.0)
    assert read is not None
    cache.check()
    cache.close_read(read)
    cache.check()


def test_ticket_dies_with_its_lease() -> None:
    cache, held = leased()
    cache.end_lease(ONE)
    assert cache.open_read("ticket", [(held[0], FIRST)], 1.0) is None


def test_dropped_block_stays_readable_for_its_lease_only() -> None:
    """The reader proves content by checksum; the owner keeps the bytes still until the end."""
    cache, held = leased()
    cache.drop(cache.blocks()[0])
    assert cache.open_read("ticket", [(held[0], FIRST)], 1.0) is not None
    cache.end_lease(ONE)
    assert cache.counts().cached == 0
    cache.check()
