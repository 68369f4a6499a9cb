"""Block name -> who holds it, as one integer: bit s is set when slot s holds the block.

Bounded: when full, blocks that no request touched for a generation are forgotten, leaves first.
Knows slots but neither workers nor events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from shared.ids import BlockHash

BLOCK_BYTES: Final = 170
"""Of one block in the table: its name, its integer and its share of the dictionary (measured by
`make bench-scheduler`)."""
HOLDING_BYTES: Final = 45
"""Of one more holder of a block: an entry in the holder's own set."""


_FROM_HEX: Final = bytes.fromhex
"""Whatever is no name is in no table."""


class HolderTable:
    """Three generations. New and touched blocks are young; when they fill half the table they
    become old, and what was old and not touched since becomes the next to drop. The youngest of a
    generation goes first: children come after their parents, so a chain loses its end."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}
        self._dying: dict[bytes, int] = {}
        self._holdings = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old) + len(self._dying)

    @property
    def size_bytes(self) -> int:
        """Estimated, with the sets that holders keep."""
        return BLOCK_BYTES * len(self) + HOLDING_BYTES * self._holdings

    def look(self, among: int) -> Callable[[BlockHash], int]:
        """Who holds a block by its name, of the slots in a mask."""
        young, old, dying = self._young.get, self._old.get, self._dying.get
        ageing = self.ageing

        def one(name: BlockHash) -> int:
            try:
                block = _FROM_HEX(name)
            except ValueError:
                return 0
            found = young(block, 0)
            if not found and ageing:
                found = old(block, 0) or dying(block, 0)
            return found & among

        return one

    def lookup(self, among: int) -> Callable[[Sequence[BlockHash]], Iterator[int]]:
        """The same for one name after the other, of the slots in a mask."""
        young, old, dying = self._young.get, self._old.get, self._dying.get
        ageing = self.ageing

        def along(names: Sequence[BlockHash]) -> Iterator[int]:
            for name in names:
                try:
                    block = _FROM_HEX(name)
                except ValueError:
                    yield 0
                    continue
                found = young(block, 0)
                if not found and ageing:
                    found = old(block, 0) or dying(block, 0)
                yield found & among

        return along

    def add(self, block: bytes, bit: int) -> None:
        """The slot of `bit` holds it now, which it did not before."""
        self._young[block] = self._young.get(block, 0) | self._revive(block) | bit
        self._holdings += 1

    def remove(self, block: bytes, bit: int) -> None:
        """It does so no longer, which it did before."""
        table = next(t for t in (self._young, self._old, self._dying) if block in t)
        left = table[block] & ~bit
        if left:
            table[block] = left
        else:
            del table[block]
        self._holdings -= 1

    def touch(self, blocks: Iterable[bytes]) -> None:
        """A request used them: they stay for another generation."""
        for block in blocks:
            known = self._revive(block)
            if known:
                self._young[block] = known

    @property
    def ageing(self) -> bool:
        """Whether touching anything makes a difference."""
        return bool(self._old or self._dying)

    def overflow(self) -> Iterator[tuple[bytes, int]]:
        """Drop blocks until the rest fits; each with the slots that held it."""
        if not self._dying and BLOCK_BYTES * len(self._young) * 2 > self._limit_bytes:
            self._young, self._old, self._dying = {}, self._young, self._old
        while self.size_bytes > self._limit_bytes and len(self):
            block, slots = (self._dying or self._old or self._young).popitem()
            self._holdings -= slots.bit_count()
            self.dropped += 1
            yield block, slots

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Everything, for checks."""
        for table in (self._young, self._old, self._dying):
            yield from table.items()

    def _revive(self, block: bytes) -> int:
        if not self.ageing:
            return 0
        return self._old.pop(block, 0) | self._dying.pop(block, 0)
