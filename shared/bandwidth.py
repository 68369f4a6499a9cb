"""How fast one card moves pages, learnt from measured reads.

A read that shares a card with others takes longer than its bytes. So a link is believed to be as
fast as the fastest of its newest reads, as BBR estimates a bottleneck (Cardwell et al., 2016), but
for one that may be an error. Averages would fall while a card is busy, and a link that nobody then
chooses would never be measured again; so beliefs end, too, when nothing was measured for a while.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from shared.costs import LinkCosts

ENOUGH: Final = 16
"""Reads that are looked back on at least. One that went alone is among so many on a card that is
busy for nine tenths of the time in four of five cases."""
_FEW: Final = 4
"""Fewer reads than this: the fastest of them is none too many."""
_BACK_S: Final = 30.0
"""Are looked back on. Reads of one burst all went together, and sixteen are soon over."""
_MOMENT_S: Final = 1.0
"""Reads within it are kept as two: the fastest, and the fastest but that."""
_LASTS_S: Final = 60.0
"""Without a read."""


@dataclass(slots=True)
class _Moment:
    begun_s: float
    fastest: float = 0.0
    """Bytes per second."""
    second: float = 0.0
    reads: int = 0

    def add(self, bytes_per_s: float) -> None:
        self.reads += 1
        if bytes_per_s > self.fastest:
            self.fastest, self.second = bytes_per_s, self.fastest
        elif bytes_per_s > self.second:
            self.second = bytes_per_s


class Bandwidth:
    """Of one link, or of several that share a card."""

    __slots__ = ("_moments", "_reads", "_until_s", "link")

    def __init__(self, shipped: LinkCosts) -> None:
        self.link = shipped
        """What is believed; until the first read what is shipped."""
        self._moments: deque[_Moment] = deque()
        self._reads = 0
        self._until_s = 0.0

    def add(self, size_bytes: int, seconds: float, now: float) -> None:
        """One measured read; both figures are above 0. A short one says little of the speed: at
        most half of it is taken for setting up."""
        moving_s = max(seconds - self.link.setup_s, 0.5 * seconds)
        moments = self._moments
        if not moments or now - moments[-1].begun_s >= _MOMENT_S:
            moments.append(_Moment(now))
        bytes_per_s = size_bytes / moving_s
        moments[-1].add(bytes_per_s)
        self._reads += 1
        self._until_s = now + _LASTS_S
        forgotten = self._forget(now)
        if forgotten or self._reads <= _FEW or bytes_per_s > self.link.bytes_per_s:
            self._believe()

    def known(self, now: float) -> bool:
        """Whether it was measured lately."""
        return now < self._until_s

    def sure(self, now: float) -> bool:
        """Whether it was measured lately, and often enough to differ from its like."""
        return self._reads >= ENOUGH and self.known(now)

    def _forget(self, now: float) -> bool:
        """What is old, as long as enough is left. Whether there was anything."""
        moments, before = self._moments, self._reads
        while now - moments[0].begun_s > _BACK_S and self._reads - moments[0].reads >= ENOUGH:
            self._reads -= moments.popleft().reads
        return self._reads < before

    def _believe(self) -> None:
        fastest = second = 0.0
        for moment in self._moments:
            if moment.fastest > fastest:
                fastest, second = moment.fastest, max(fastest, moment.second)
            elif moment.fastest > second:
                second = moment.fastest
        believed = fastest if self._reads < _FEW else second
        if believed != self.link.bytes_per_s:
            self.link = LinkCosts(self.link.setup_s, believed)
