"""How fast pages move between two workers, learnt from measured reads.

A read that shares a card with others takes longer than its bytes: what waits in line is counted
elsewhere (`LinkQueues`), and must not count twice. So a link is believed to be as fast as the
fastest of its newest reads, as BBR estimates a bottleneck (Cardwell et al., 2016), but for one that
may be an error. Averages would fall while a card is busy, and a reader that nobody then chooses
would never be measured again; so beliefs end, too, when nothing was measured for a while.

A link that was not measured has the belief of its reader, whose card carries it; a reader that was
not, that of all; nothing known at all: the shipped value.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import Final, TypeVar

from shared.costs import LinkCosts
from shared.ids import WorkerId

SHIPPED: Final = LinkCosts(setup_s=0.001, bytes_per_s=1.0e9)
_MOST_LINKS: Final = 65_536
_WIDEST: Final = 1000.0
K = TypeVar("K")
_NEWEST: Final = 16
"""Reads. One that went alone is among so many on a card that is busy for nine tenths of the time
in four of five cases; as many must be slow until a link is believed to be."""
_FEW: Final = 4
"""Fewer reads than this: the fastest of them is none too many."""
_LASTS_S: Final = 60.0
"""Without a read."""


class _Speed:
    """Of one link, or of several that share a card."""

    __slots__ = ("_newest", "_until_s", "link")

    def __init__(self, shipped: LinkCosts) -> None:
        self.link = shipped
        """What is believed; until the first read what is shipped."""
        self._newest: deque[float] = deque(maxlen=_NEWEST)
        self._until_s = 0.0

    def add(self, bytes_per_s: float, now: float) -> None:
        self._newest.append(bytes_per_s)
        self._until_s = now + _LASTS_S
        fastest = sorted(self._newest)[-2:]
        believed = fastest[-1 if len(self._newest) < _FEW else 0]
        if believed != self.link.bytes_per_s:
            self.link = LinkCosts(self.link.setup_s, believed)

    def known(self, now: float) -> bool:
        return now < self._until_s


class Links:
    """Directed: who reads from whom. The links that were silent longest are forgotten."""

    def __init__(self, shipped: LinkCosts = SHIPPED) -> None:
        self._shipped = shipped
        self._all = _Speed(shipped)
        self._readers: OrderedDict[WorkerId, _Speed] = OrderedDict()
        self._links: OrderedDict[tuple[WorkerId, WorkerId], _Speed] = OrderedDict()
        self.samples = 0
        self.refused = 0

    def add(
        self, reader: WorkerId, owner: WorkerId, size_bytes: int, seconds: float, now: float
    ) -> None:
        """One measured read."""
        sound = size_bytes > 0 and math.isfinite(seconds) and 0.0 < seconds < 3600.0
        if not sound or size_bytes / seconds > _WIDEST * self._shipped.bytes_per_s:
            self.refused += 1
            return
        self.samples += 1
        # A short read says little of the speed: at most half of it is taken for setting up.
        speed = size_bytes / max(seconds - self._shipped.setup_s, 0.5 * seconds)
        self._all.add(speed, now)
        _of(self._readers, reader, self._shipped).add(speed, now)
        _of(self._links, (reader, owner), self._shipped).add(speed, now)

    def between(self, reader: WorkerId, owner: WorkerId, now: float) -> LinkCosts:
        """What is known of this direction."""
        found = self._links.get((reader, owner))
        return found.link if found is not None and found.known(now) else self.of(reader, now)

    def of(self, reader: WorkerId, now: float) -> LinkCosts:
        """What this reader's links carry, whoever owns the pages."""
        found = self._readers.get(reader)
        return found.link if found is not None and found.known(now) else self._all.link

    def forget(self, worker: WorkerId) -> None:
        """It is gone; another process under its name may be elsewhere."""
        for pair in [pair for pair in self._links if worker in pair]:
            del self._links[pair]
        self._readers.pop(worker, None)

    def shown(self) -> dict[str, object]:
        """For people: the usual speed and the ten slowest links, whenever they were measured."""
        slowest = sorted(self._links.items(), key=lambda entry: entry[1].link.bytes_per_s)[:10]
        return {
            "bytes_per_s": round(self._all.link.bytes_per_s),
            "setup_s": self._all.link.setup_s,
            "samples": self.samples,
            "refused": self.refused,
            "slowest": [
                {"reader": reader, "owner": owner, "bytes_per_s": round(known.link.bytes_per_s)}
                for (reader, owner), known in slowest
            ],
        }


def _of(known: OrderedDict[K, _Speed], key: K, shipped: LinkCosts) -> _Speed:
    """The entry of a key, new if need be, which makes it the newest."""
    found = known.get(key)
    if found is None:
        found = known[key] = _Speed(shipped)
        if len(known) > _MOST_LINKS:
            known.popitem(last=False)
    known.move_to_end(key)
    return found
