"""How fast pages move between two workers, as measured reads tell (`shared.bandwidth`): what waits
in line is counted elsewhere (`Cards`), and must not count twice.

All cards are taken to be alike, and all links of one, until enough reads tell that one is another
kind: else chance makes one look the fastest, and everything goes there. Before the first read it is
the shipped value.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, TypeVar

from shared.bandwidth import Bandwidth
from shared.costs import LinkCosts
from shared.ids import WorkerId

SHIPPED: Final = LinkCosts(setup_s=0.001, bytes_per_s=25.0e9)
"""A card of 200 Gbit/s. A slower one says so with its first read; but while one is believed to be
too slow, a cold cluster's first burst is sent away from what is cached."""
_UNLIKE: Final = 1.75
"""Times as fast or as slow as all: cards of 100 and 200 Gbit/s are of two kinds."""
_MOST_LINKS: Final = 65_536
_WIDEST: Final = 40.0
K = TypeVar("K")


class Links:
    """Directed: who reads from whom. The links that were silent longest are forgotten."""

    def __init__(self, shipped: LinkCosts = SHIPPED) -> None:
        self._shipped = shipped
        self._all = Bandwidth(shipped)
        self._readers: OrderedDict[WorkerId, Bandwidth] = OrderedDict()
        self._links: OrderedDict[tuple[WorkerId, WorkerId], Bandwidth] = OrderedDict()
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
        read = size_bytes, seconds, now
        self._all.add(*read)
        _of(self._readers, reader, self._shipped).add(*read)
        _of(self._links, (reader, owner), self._shipped).add(*read)

    def between(self, reader: WorkerId, owner: WorkerId, now: float) -> LinkCosts:
        """What is known of this direction: no link is faster than its reader's card."""
        card, found = self.of(reader, now), self._links.get((reader, owner))
        slower = found is not None and found.link.bytes_per_s * _UNLIKE < card.bytes_per_s
        return found.link if found is not None and slower and found.sure(now) else card

    def of(self, reader: WorkerId, now: float) -> LinkCosts:
        """What this reader's card carries, whoever owns the pages."""
        usual, found = self._all.link, self._readers.get(reader)
        if found is None or not found.sure(now):
            return usual
        factor = found.link.bytes_per_s / usual.bytes_per_s
        return found.link if factor > _UNLIKE or factor * _UNLIKE < 1.0 else usual

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


def _of(known: OrderedDict[K, Bandwidth], key: K, shipped: LinkCosts) -> Bandwidth:
    """The entry of a key, new if need be, which makes it the newest."""
    found = known.get(key)
    if found is None:
        found = known[key] = Bandwidth(shipped)
        if len(known) > _MOST_LINKS:
            known.popitem(last=False)
    known.move_to_end(key)
    return found
