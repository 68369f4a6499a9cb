"""The arena: bounds, views and checksums."""

from __future__ import annotations

import pytest
import xxhash

from services.kvpool.arena import HostArena
from shared.errors import StartupError
from shared.ids import PageId


def test_neighbouring_pages_are_one_view() -> None:
    arena = HostArena(host_bytes=35, page_bytes=10)
    assert arena.pages == 3
    arena.run(PageId(0), 3)[:] = range(30)
    arena.run(PageId(1), 1)[:] = 7
    assert arena.run(PageId(0), 2).tolist() == [*range(10), *[7] * 10]


def test_checksums_are_xxh3_64_of_whole_pages() -> None:
    arena = HostArena(host_bytes=20, page_bytes=10)
    arena.run(PageId(0), 2)[:] = range(20)
    expected = [xxhash.xxh3_64_intdigest(bytes(range(first, first + 10))) for first in (10, 0)]
    assert list(arena.checksums([PageId(1), PageId(0)])) == expected


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 0), (0, 3), (2, 1), (10**18, 1)])
def test_br_025_pages_outside_are_refused(first: int, count: int) -> None:
    with pytest.raises(IndexError):
        HostArena(host_bytes=20, page_bytes=10).run(PageId(first), count)


def test_arena_below_a_page_or_beyond_the_system_cannot_start() -> None:
    with pytest.raises(StartupError, match="host_bytes"):
        HostArena(host_bytes=9, page_bytes=10)
    with pytest.raises(StartupError, match="host_bytes"):
        HostArena(host_bytes=1 << 62, page_bytes=1 << 20)
