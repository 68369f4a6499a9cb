"""Reads under way: which pages each fills, for whom, and what is left of it when that ends.

A pull is `reading` until the plane reports its end, then `verifying`. An orphan is a reading
pull whose sequence ended: its targets wait in quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.decode.core.sequences import Sequence
from shared.ids import PageId
from shared.kv.cache import HeldPage
from shared.shared_reads import SharedReads
from shared.wire.blocks import BlocksFound
from shared.wire.requests import WorkerRef


@dataclass(slots=True)
class PullState:
    """One read of some prompt positions of one sequence."""

    number: int
    sequence: Sequence
    peer: WorkerRef
    positions: tuple[int, ...]
    targets: tuple[HeldPage, ...]
    expected: tuple[int, ...]
    """Checksums that prefill announced."""
    started_s: float
    link: str
    verify_s: float | None = None
    source: BlocksFound | None = None
    """The pool's answer, where the pages come from there and not from prefill."""
    orphan: bool = False


class Pulls:
    """All pulls of this worker by number."""

    def __init__(self) -> None:
        self._pulls: dict[int, PullState] = {}
        self._last = 0
        self._shared = SharedReads()
        self.over = 0
        """How many were removed or abandoned so far."""

    def __len__(self) -> int:
        return len(self._pulls)

    def __iter__(self) -> Iterator[PullState]:
        return iter(self._pulls.values())

    @property
    def reading(self) -> int:
        if not self._pulls:
            return 0
        return sum(1 for pull in self._pulls.values() if pull.verify_s is None)

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def add(self, pull: PullState) -> None:
        self._pulls[pull.number] = pull

    def get(self, number: int, *, verifying: bool) -> PullState | None:
        """The pull if it is in that phase: a report for another phase is a repetition."""
        pull = self._pulls.get(number)
        return pull if pull is not None and (pull.verify_s is not None) is verifying else None

    def find(self, number: int) -> PullState | None:
        """The pull in whatever phase."""
        return self._pulls.get(number)

    def landed(self, pull: PullState, size_bytes: int, now: float) -> float:
        """It is over and to be proven. The seconds that it would have taken alone."""
        pull.verify_s = now
        return self._shared.alone_s(size_bytes, now - pull.started_s, now)

    def remove(self, number: int) -> None:
        self._pulls.pop(number, None)
        self.over += 1

    def abandon(self, sequence: Sequence) -> list[PageId]:
        """The sequence ended. Pages that an unfinished read may still write: they must not be
        given away before `PullEnded`."""
        writing: list[PageId] = []
        for pull in list(self._pulls.values()):
            if pull.sequence is not sequence:
                continue
            self.over += 1
            if pull.verify_s is None:
                pull.orphan = True
                writing.extend(page.page for page in pull.targets)
            else:
                del self._pulls[pull.number]
        return writing
