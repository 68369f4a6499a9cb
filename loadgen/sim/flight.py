"""One read of pages from its request to the instant after which nothing of it lands. State only."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from shared.dataplane.plane import PageRead
from shared.errors import Code
from shared.ids import Generation, PageId

if TYPE_CHECKING:
    from loadgen.sim.plane import PageHost


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """How a read ended for its reader. Unless `settled`, bytes may still land."""

    error: Code | None
    settled: bool = True
    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class Piece:
    """A part of one page on its way."""

    read: PageRead
    offset: int
    size: int
    missing: bool = False
    """Counts as landed, but its bytes were lost: a torn page."""
    landed: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    """`linked` while bytes may land; `reported` once the reader's call has returned."""

    number: int
    reader: PageHost
    address: str
    ticket: str
    reads: tuple[PageRead, ...]
    done: Callable[[ReadOutcome], None]
    chance: random.Random
    owner: PageHost | None = None
    read: int | None = None
    """The owner's open read."""
    linked: bool = True
    reported: bool = False
    left: int = 0
    failure: Code = Code.WORKER_LOST
    generations: dict[PageId, Generation] = field(default_factory=dict)
    """Of the targets, when the read began."""
    prints: dict[PageId, int] = field(default_factory=dict)
    """Of the sources' content, when the owner opened the read."""

    @property
    def story(self) -> str:
        return f"read {self.number} by {self.reader.address} from {self.address}"

    def pending_targets(self) -> list[PageId]:
        return [read.target for read in self.reads]

    def fingerprint(self, source: PageId) -> int:
        """Of a source page as it is now."""
        if self.owner is None:
            raise AssertionError("a read that was never granted has no source")
        return xxhash.xxh3_64_intdigest(memoryview(self.owner.memory.run(source, 1)).cast("B"))
