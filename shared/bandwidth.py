"""How fast one card moves pages, learnt from measured reads.

A read that shares a card with others takes longer than its bytes. So a link is believed to be as
fast as the fastest of its newest reads, as BBR estimates a bottleneck (Cardwell et al., 2016), but
for one that may be an error. Averages would fall while a card is busy, and a link that nobody then
chooses would never be measured again; so beliefs end, too, when nothing was measured for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from shared.costs import LinkCosts

_NEWEST: Final = 16
"""Reads. One that went alone is among so many on a card that is busy for nine tenths of the time
in four of five cases; as many must be slow until a link is believed to be."""
_FEW: Final = 4
"""Fewer reads than this: the fastest of them is none too many."""
_LASTS_S: Final = 60.0
"""Without a read."""


class Bandwidth:
    """Of one link, or of several that share a card."""

    __slots__ = ("_newest", "_until_s", "link")

    def __init__(self, shipped: LinkCosts) -> None:
        self.link = shipped
        """What is believed; until the first read what is shipped."""
        self._newest: deque[float] = deque(maxlen=_NEWEST)
        self._until_s = 0.0

    def add(self, size_bytes: int, seconds: float, now: float) -> None:
        """One measured read; both figures are above 0. A short one says little of the speed: at
        most half of it is taken for setting up."""
        moving_s = max(seconds - self.link.setup_s, 0.5 * seconds)
        self._newest.append(size_bytes / moving_s)
        self._until_s = now + _LASTS_S
        fastest = sorted(self._newest)[-2:]
        believed = fastest[-1 if len(self._newest) < _FEW else 0]
        if believed != self.link.bytes_per_s:
            self.link = LinkCosts(self.link.setup_s, believed)

    def known(self, now: float) -> bool:
        """Whether it was measured lately."""
        return now < self._until_s
