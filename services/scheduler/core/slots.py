"""Slots: small numbers for (worker, tier), so that a set of holders is one integer.

A slot is given again only when nothing in the table names it any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from services.scheduler.core.holders import HolderTable
from services.scheduler.core.lookup import bits
from services.scheduler.core.streams import Holding
from shared.ids import WorkerId


class Slots:
    """Who has which number, and what those that are gone have left in the table."""

    def __init__(self) -> None:
        self._owners: list[tuple[WorkerId, str] | None] = []
        self._free: list[int] = []
        self._leaving: deque[Holding] = deque()
        self.alive = 0
        """Mask of the slots in use."""
        self.version = 0
        """Grows when one is given or taken: masks made before are outdated."""

    def __len__(self) -> int:
        return len(self._owners)

    def take(self, worker: WorkerId, tier: str) -> Holding:
        """A slot for a new holder."""
        slot = self._free.pop() if self._free else len(self._owners)
        if slot == len(self._owners):
            self._owners.append(None)
        self._owners[slot] = (worker, tier)
        self.alive |= 1 << slot
        self.version += 1
        return Holding(slot)

    def owner(self, slot: int) -> tuple[WorkerId, str] | None:
        return self._owners[slot]

    def owners(self, mask: int) -> Iterator[tuple[WorkerId, str]]:
        """Those of a mask that are in use."""
        for slot in bits(mask & self.alive):
            owner = self._owners[slot]
            if owner is not None:
                yield owner

    def retire(self, holdings: Iterable[Holding]) -> None:
        """Hide them now; `sweep` takes their blocks out of the table."""
        for holding in holdings:
            self.alive &= ~holding.bit
            self._owners[holding.slot] = None
            self._leaving.append(holding)
        self.version += 1

    def sweep(self, table: HolderTable, most: int) -> None:
        """At most so many blocks."""
        while self._leaving and most > 0:
            holding = self._leaving[0]
            while holding.blocks and most > 0:
                table.remove(holding.blocks.pop(), holding.bit)
                most -= 1
            if not holding.blocks:
                self._free.append(self._leaving.popleft().slot)

    def dropped(self, block: bytes, mask: int) -> None:
        """The table has forgotten it: nothing is left to sweep there."""
        for holding in self._leaving:
            if mask & holding.bit:
                holding.blocks.discard(block)

    def leaving(self) -> Iterator[Holding]:
        """Not swept yet, for checks."""
        return iter(self._leaving)
