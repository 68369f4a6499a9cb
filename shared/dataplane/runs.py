"""Which pages travel together: neighbours at the source that are also neighbours at the target.

Knows pages and generations only; both adapters move whole runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.dataplane.plane import PageMemory, PageRead
from shared.errors import Code, TransferError
from shared.ids import Generation, PageId


@dataclass(frozen=True, slots=True)
class Run:
    """`len(generations)` pages from `source` on, to `target` on."""

    source: PageId
    target: PageId
    generations: tuple[Generation, ...]

    @property
    def pages(self) -> int:
        return len(self.generations)

    def split(self, pages: int) -> tuple[Run, Run | None]:
        """The first `pages` of it, and the rest if any."""
        head = Run(self.source, self.target, self.generations[:pages])
        if pages >= self.pages:
            return head, None
        source, target = PageId(self.source + pages), PageId(self.target + pages)
        return head, Run(source, target, self.generations[pages:])


def coalesce(pages: Sequence[PageRead]) -> tuple[Run, ...]:
    """The fewest runs that are contiguous on both sides, in the order of their source."""
    runs: list[Run] = []
    started: PageRead | None = None
    generations: list[Generation] = []
    for page in sorted(pages, key=lambda page: (page.source, page.target)):
        if started is not None and _continues(started, len(generations), page):
            generations.append(page.generation)
            continue
        if started is not None:
            runs.append(Run(started.source, started.target, tuple(generations)))
        started, generations = page, [page.generation]
    if started is not None:
        runs.append(Run(started.source, started.target, tuple(generations)))
    return tuple(runs)


def _continues(started: PageRead, count: int, page: PageRead) -> bool:
    return page.source == started.source + count and page.target == started.target + count


def check_targets(memory: PageMemory, pages: Sequence[PageRead]) -> None:
    """Refuse a read of our own making that would write outside our pages, or one page twice.
    Raises TransferError before anything was sent."""
    targets = {page.target for page in pages}
    if len(targets) != len(pages):
        raise TransferError("a target page is named twice", Code.INVALID_PARAMETER)
    if targets and not (min(targets) >= 0 and max(targets) < memory.pages):
        raise TransferError("a target page is out of range", Code.INVALID_PARAMETER)
