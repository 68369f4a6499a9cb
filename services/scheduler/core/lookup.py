"""How deep the chain of a request lies in whose cache.

A block implies all blocks before it on the same holder (caches give up leaves first), so each
holder's depth is found by bisection; short chains are walked. Time grows with the number of
different depths asked for, not with the length of the chain or the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from shared.ids import BlockHash

_WALKED: Final = 64


class Match:
    """One request's chain against the holders. Slots are bit numbers."""

    def __init__(
        self,
        hashes: Sequence[BlockHash],
        look: Callable[[BlockHash], int],
        predicted: dict[int, int],
        along: Callable[[Sequence[BlockHash]], Iterator[int]],
    ) -> None:
        """`look` gives the slots that hold a block, `along` those of each block of a chain;
        `predicted` the depths of slots that were just given this prefix to compute."""
        self.hashes = hashes
        self._look = look
        self.predicted = predicted
        self._known: dict[int, int] = {}
        self._depths: dict[int, int] = {}
        self._walked = len(hashes) <= _WALKED
        if self._walked:
            self._walk(along(hashes))

    def deepest(self, among: int, most: int) -> list[tuple[int, int]]:
        """(slot, depth) of at most `most` slots in the mask `among`, deepest first."""
        found = self._facts(among, most)
        for slot, depth in self.predicted.items():
            if among >> slot & 1 and depth > found.get(slot, 0):
                found[slot] = depth
        return sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))[:most]

    def depth(self, slot: int) -> int:
        """Leading blocks that this slot holds or was just given."""
        return max(self.predicted.get(slot, 0), self.held(slot))

    def held(self, slot: int) -> int:
        """Leading blocks that this slot holds for a fact."""
        known = self._depths.get(slot)
        if known is None:
            known = 0 if self._walked else self._bisect(1 << slot, len(self.hashes))
            self._depths[slot] = known
        return known

    def slots_at(self, depth: int) -> int:
        """Mask of the slots that hold the first `depth` blocks, 1-based."""
        if not 0 < depth <= len(self.hashes):
            return 0
        known = self._known.get(depth)
        if known is None:
            known = self._known[depth] = self._look(self.hashes[depth - 1])
        return known

    # -- inside ------------------------------------------------------------------------------

    def _facts(self, among: int, most: int) -> dict[int, int]:
        if self._walked:
            pairs = [(s, d) for s, d in self._depths.items() if d and among >> s & 1]
            pairs.sort(key=lambda pair: -pair[1])
            return dict(pairs[:most])
        found: dict[int, int] = {}
        left, depth = among, len(self.hashes)
        while left and len(found) < most:
            depth = self._bisect(left, depth)
            if depth == 0:
                break
            for slot in bits(self.slots_at(depth) & left):
                found[slot] = self._depths[slot] = depth
            left &= ~self.slots_at(depth)
            depth -= 1
        return found

    def _bisect(self, mask: int, high: int) -> int:
        """Largest depth up to `high` at which a slot of the mask still holds the block."""
        if not self.slots_at(1) & mask:
            return 0
        low, known, look, hashes = 0, self._known, self._look, self.hashes
        while low < high:
            middle = (low + high + 1) // 2
            slots = known.get(middle)
            if slots is None:
                slots = known[middle] = look(hashes[middle - 1])
            if slots & mask:
                low = middle
            else:
                high = middle - 1
        return low

    def _walk(self, chain: Iterator[int]) -> None:
        """Exactly: a hole ends the depth."""
        alive, known = -1, self._known
        for depth, held in enumerate(chain, start=1):
            known[depth] = held
            here = held & alive
            if here != alive:
                if alive != -1:
                    for slot in bits(alive & ~here):
                        self._depths[slot] = depth - 1
                alive = here
                if not alive:
                    break
        if alive > 0:
            for slot in bits(alive):
                self._depths[slot] = len(self.hashes)


def bits(mask: int) -> Iterator[int]:
    """Numbers of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
