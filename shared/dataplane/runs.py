"""Which pages travel together: neighbours at the source that are also neighbours at the target.

Knows pages and generations only; both adapters move whole runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from shared.dataplane.plane import PageMemory, PageRead
from shared.errors import Code, TransferError
from shared.ids import Generation, PageId

_PLACE: Final = attrgetter("source", "target")
_TARGET: Final = attrgetter("target")


class Run(NamedTuple):
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
    if not pages:
        return ()
    first = pages[0]
    source: int = first.source
    target: int = first.target
    generations: list[Generation] = []
    for page in pages:
        if page.source != source or page.target != target:
            return _sorted_out(pages)
        generations.append(page.generation)
        source += 1
        target += 1
    return (Run(first.source, first.target, tuple(generations)),)


def _sorted_out(pages: Sequence[PageRead]) -> tuple[Run, ...]:
    runs: list[Run] = []
    generations: list[Generation] = []
    source = target = -1  # where the run under way would go on
    for page in sorted(pages, key=_PLACE):
        if page.source != source or page.target != target:
            if generations:
                runs.append(_ending(source, target, generations))
            generations = []
            source, target = page.source, page.target
        generations.append(page.generation)
        source += 1
        target += 1
    runs.append(_ending(source, target, generations))
    return tuple(runs)


def _ending(source: int, target: int, generations: Sequence[Generation]) -> Run:
    count = len(generations)
    return Run(PageId(source - count), PageId(target - count), tuple(generations))


def check_targets(memory: PageMemory, runs: Sequence[Run]) -> None:
    """Refuse a read of our own making that would write outside our pages, or one page twice.
    Raises TransferError before anything was sent."""
    for run in runs:
        if run.target < 0 or run.target + len(run.generations) > memory.pages:
            raise TransferError("a target page is out of range", Code.INVALID_PARAMETER)
    if len(runs) > 1:
        for before, after in pairwise(sorted(runs, key=_TARGET)):
            if before.target + before.pages > after.target:
                raise TransferError("a target page is named twice", Code.INVALID_PARAMETER)
