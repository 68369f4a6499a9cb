"""How often a block that a cache gave up is wanted again: what evicting one costs.

One ghost list over all workers: names of the last evictions, and how many came back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

_MOST: Final = 65_536
_HALVED_EACH: Final = 2_000


class Ghosts:
    """`share` is P(asked again) of an evicted block: (hits + 1) / (evictions + 4)."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._names: OrderedDict[tuple[int, bytes], None] = OrderedDict()
        self._hits = 0.0
        self._evictions = 0.0

    @property
    def share(self) -> float:
        return (self._hits + 1.0) / (self._evictions + 4.0)

    def evicted(self, slot: int, blocks: Iterable[bytes]) -> None:
        """This holder gave them up."""
        for block in blocks:
            self._names[slot, block] = None
            self._evictions += 1
        while len(self._names) > self._most:
            self._names.popitem(last=False)
        self._fade()

    def stored(self, slot: int, blocks: Iterable[bytes]) -> None:
        """This holder has them (again)."""
        if self._names:
            for block in blocks:
                if self._names.pop((slot, block), self) is None:
                    self._hits += 1

    def _fade(self) -> None:
        while self._evictions > _HALVED_EACH:
            self._evictions /= 2
            self._hits /= 2
