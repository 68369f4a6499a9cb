"""Pages, a guard and an observer for data plane tests: small, countable, easy to read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.dataplane.observer import Cause
from shared.dataplane.plane import PageRead
from shared.ids import Generation, PageId

TICKET = "ticket-of-a-test"
CANARY = 0xEE
PAGES = 64


class ArrayPages:
    """Host pages in one numpy array."""

    def __init__(self, pages: int, page_bytes: int, fill: int = CANARY) -> None:
        self.array: NDArray[np.uint8] = np.full((pages, page_bytes), fill, np.uint8)

    @property
    def page_bytes(self) -> int:
        return int(self.array.shape[1])

    @property
    def pages(self) -> int:
        return int(self.array.shape[0])

    def run(self, first: PageId, count: int) -> NDArray[np.uint8]:
        assert first >= 0 and first + count <= self.pages
        return self.array[first : first + count]

    def stamp(self) -> ArrayPages:
        """Give every page content that no other page has."""
        words = self.array.view(np.uint32)
        words[:] = np.arange(words.size, dtype=np.uint32).reshape(words.shape) * 2654435761 + 1
        return self

    def untouched(self, pages: Sequence[int]) -> bool:
        return bool((self.array[list(pages)] == CANARY).all())


class TicketGuard:
    """Grants TICKET, and what a test adds, with generation page + 1, unless told to refuse."""

    def __init__(self) -> None:
        self.tickets = {TICKET}
        self.refusing = False
        self.opened = 0
        self.open: set[int] = set()

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        if self.refusing or ticket not in self.tickets:
            return None
        if any(generation != page + 1 for page, generation in pages):
            return None
        self.opened += 1
        self.open.add(self.opened)
        return self.opened

    def close_read(self, read: int) -> None:
        self.open.remove(read)  # a second close of the same read fails the test


class CountingObserver:
    """Remembers what the plane told."""

    def __init__(self) -> None:
        self.links: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.failures: Counter[Cause] = Counter()
        self.turned: Counter[Cause] = Counter()

    def link_opened(self, transport: str) -> None:
        self.links[transport] += 1

    def link_closed(self, transport: str) -> None:
        self.links[transport] -= 1

    def pulled(self, transport: str, size_bytes: int, seconds: float) -> None:
        self.bytes[f"pulled:{transport}"] += size_bytes

    def served(self, transport: str, size_bytes: int, seconds: float) -> None:
        self.bytes[f"served:{transport}"] += size_bytes

    def failed(self, cause: Cause) -> None:
        self.failures[cause] += 1

    def turned_away(self, cause: Cause) -> None:
        self.turned[cause] += 1


def reads(pairs: Sequence[tuple[int, int]]) -> list[PageRead]:
    """(source, target) pairs at the generation that `TicketGuard` grants."""
    return [
        PageRead(PageId(source), Generation(source + 1), PageId(target)) for source, target in pairs
    ]


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Let the loop turn until `condition` holds."""
    async with asyncio.timeout(within_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0)
