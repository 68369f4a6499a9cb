"""How fast pages move between two workers, learnt from measured reads.

A link that was never measured has the average of its reader, whose card carries it; a reader that
was never measured the average of all; nothing known at all: the shipped value.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from shared import costs
from shared.costs import LinkCosts
from shared.ids import WorkerId

SHIPPED: Final = LinkCosts(setup_s=0.001, bytes_per_s=1.0e9)
_MOST_LINKS: Final = 65_536
_WIDEST: Final = 1000.0


class Links:
    """Directed: who reads from whom. The links that were silent longest are forgotten."""

    def __init__(self, shipped: LinkCosts = SHIPPED) -> None:
        self._shipped = shipped
        self._all = shipped
        self._readers: OrderedDict[WorkerId, LinkCosts] = OrderedDict()
        self._links: OrderedDict[tuple[WorkerId, WorkerId], LinkCosts] = OrderedDict()
        self.samples = 0
        self.refused = 0

    def add(self, reader: WorkerId, owner: WorkerId, size_bytes: int, seconds: float) -> None:
        """One measured read."""
        sound = size_bytes > 0 and math.isfinite(seconds) and 0.0 < seconds < 3600.0
        limit = _WIDEST * self._shipped.bytes_per_s
        if not sound or size_bytes / seconds > limit:
            self.refused += 1
            return
        self.samples += 1
        moving_s = max(seconds - self._shipped.setup_s, 0.1 * seconds)
        first = LinkCosts(self._shipped.setup_s, min(limit, size_bytes / moving_s))
        self._all = first if self.samples == 1 else _averaged(self._all, size_bytes, seconds)
        known = self._readers.get(reader)
        usual = first if known is None else _averaged(known, size_bytes, seconds)
        self._readers[reader] = usual
        self._readers.move_to_end(reader)
        pair = self._links.get((reader, owner), usual)
        learned = costs.learned_bandwidth(pair, size_bytes, seconds, usual.bytes_per_s)
        self._links[reader, owner] = learned
        self._links.move_to_end((reader, owner))
        while len(self._links) > _MOST_LINKS:
            self._links.popitem(last=False)
        while len(self._readers) > _MOST_LINKS:
            self._readers.popitem(last=False)

    def between(self, reader: WorkerId, owner: WorkerId) -> LinkCosts:
        """What is known of this direction."""
        return self._links.get((reader, owner)) or self.of(reader)

    def of(self, reader: WorkerId) -> LinkCosts:
        """What this reader's links carry, whoever owns the pages."""
        return self._readers.get(reader, self._all)

    def forget(self, worker: WorkerId) -> None:
        """It is gone; another process under its name may be elsewhere."""
        for pair in [pair for pair in self._links if worker in pair]:
            del self._links[pair]
        self._readers.pop(worker, None)

    def shown(self) -> dict[str, object]:
        """For people: the average and the ten slowest."""
        slowest = sorted(self._links.items(), key=lambda entry: entry[1].bytes_per_s)[:10]
        return {
            "bytes_per_s": round(self._all.bytes_per_s),
            "setup_s": self._all.setup_s,
            "samples": self.samples,
            "refused": self.refused,
            "slowest": [
                {"reader": reader, "owner": owner, "bytes_per_s": round(link.bytes_per_s)}
                for (reader, owner), link in slowest
            ],
        }


def _averaged(link: LinkCosts, size_bytes: int, seconds: float) -> LinkCosts:
    return costs.learned_bandwidth(link, size_bytes, seconds, link.bytes_per_s)
