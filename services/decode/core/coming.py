"""Blocks that a read is bringing already: siblings wait for it instead of reading them again.

Knows which pull brings which block, and who waits for whose; moves no page.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.decode.core.pulls import Pulls
from services.decode.core.sequences import Sequence
from shared.ids import BlockHash


class Coming:
    """Forgets a pull when it is over, and tells then who waited for it."""

    def __init__(self, pulls: Pulls) -> None:
        self._pulls = pulls
        self._by_block: dict[BlockHash, int] = {}
        self._blocks: dict[int, tuple[BlockHash, ...]] = {}
        self._waiting: dict[int, list[tuple[Sequence, int]]] = {}
        self._seen = 0
        """Pulls that were over when it was last asked for them."""

    def begin(self, pull: int, blocks: tuple[BlockHash, ...]) -> None:
        """This pull brings these blocks."""
        if blocks:
            self._blocks[pull] = blocks
            self._by_block.update(dict.fromkeys(blocks, pull))

    def brings(self, block: BlockHash, to: Sequence) -> int | None:
        """The pull that is bringing this block to somebody else."""
        pull = self._by_block.get(block)
        return pull if pull is not None and self._reading(pull, to) else None

    def wait(self, pull: int, sequence: Sequence, position: int) -> None:
        """A sequence takes the block over once that pull is over."""
        self._waiting.setdefault(pull, []).append((sequence, position))

    @property
    def changed(self) -> bool:
        """Whether a pull may be over that nobody was told of."""
        return self._seen != self._pulls.over

    def over(self) -> Iterator[tuple[int, list[tuple[Sequence, int]]]]:
        """Pulls that are over, once each, with those who waited and for which positions."""
        self._seen = self._pulls.over
        for pull in [pull for pull in self._blocks if not self._reading(pull, None)]:
            for block in self._blocks.pop(pull):
                if self._by_block.get(block) == pull:
                    del self._by_block[block]
            yield pull, self._waiting.pop(pull, [])

    def _reading(self, number: int, but: Sequence | None) -> bool:
        pull = self._pulls.find(number)
        return pull is not None and not pull.orphan and pull.sequence is not but
