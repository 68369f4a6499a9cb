"""Which pages travel together: neighbours at the source that are also neighbours at the target.

Knows pages and generations only; both adapters move whole runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from shared.dataplane.plane import PageMemory, PageRead
from shared.errors import Code, TransferError
from shared.ids import Generation, PageId

_PLACE: Final = attrgetter("source", "target")


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
    if generations:
        runs.append(_ending(source, target, generations))
    return tuple(runs)


def _ending(source: int, target: int, generations: Sequence[Generation]) -> Run:
    count = len(generations)
    return Run(PageId(source - count), PageId(target - count), tuple(generations))


def check_targets(memory: PageMemory, pages: Sequence[PageRead]) -> None:
    """Refuse a read of our own making that would write outside our pages, or one page twice.
    Raises TransferError before anything was sent."""
    targets = {page.target for page in pages}
    if len(targets) != len(pages):
        raise TransferError("a target page is named twice", Code.INVALID_PARAMETER)
    if targets and not (min(targets) >= 0 and max(targets) < memory.pages):
        raise TransferError("a target page is out of range", Code.INVALID_PARAMETER)
