"""Prefixes that many requests start with: how many copies of each pay.

Counts arrivals at a few depths of every chain. A copy is made when the queueing it saves within a
horizon exceeds what it costs, and given up when it has not paid for a minute (algorithms, 3.6).
Knows slots and seconds; places nothing.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Final

from shared.ids import BlockHash

_HALF_LIFE_S: Final = 10.0
_WINDOW_S: Final = _HALF_LIFE_S / math.log(2)
_MOST: Final = 8_192
_LOOKED_AT: Final = 4_096
_COLD_RATE: Final = 0.01
_LEAST_RATE: Final = 0.5
"""Requests per second from which a prefix is watched."""
_SAME_SHARE: Final = 0.7
"""A deeper prefix counts as the same one when it gets this share of the requests."""
_CAP: Final = 0.98
_LEAST_S: Final = 1.0
"""Two requests within a millisecond are no thousand a second."""


@dataclass(slots=True)
class Prefix:
    """One watched prefix."""

    depth: int
    above: BlockHash | None = None
    """The watched prefix that it continues."""
    begun_s: float = math.inf
    """When the first came."""
    count: float = 0.0
    seen_s: float = -math.inf
    work_s: float = 0.0
    square: float = 0.0
    """Averages of a request's own work, and of its square."""
    regret_s: float = 0.0
    """What those that came lately waited longer than another worker would have let them."""
    regretted_s: float = -math.inf
    """When the last of them came."""
    changed_s: float = -math.inf
    """When its copies last changed."""
    cold_since_s: float | None = None
    made: int = 0
    """Copies that were made on purpose."""
    retired: int = 0
    """Slots that are no longer counted as holders, as bits."""

    def arrive(self, work_s: float, now: float) -> None:
        """One more request starts with it."""
        self.begun_s = min(self.begun_s, now)
        self.count = self.left(now) + 1.0
        self.seen_s = now
        weight = max(0.05, 1.0 / self.count)
        self.work_s += weight * (work_s - self.work_s)
        self.square += weight * (work_s * work_s - self.square)

    def left(self, now: float) -> float:
        age_s = now - self.seen_s
        if self.count == 0.0 or age_s <= 0.0:
            return self.count
        return self.count * math.exp(-age_s / _WINDOW_S)

    def rate(self, now: float) -> float:
        """Requests per second; of a prefix that is seen for less than the window, of that time."""
        age_s = now - self.begun_s
        seen_s = _WINDOW_S * (1.0 - math.exp(-age_s / _WINDOW_S)) if age_s > 0.0 else 0.0
        return self.left(now) / (seen_s if seen_s > _LEAST_S else _LEAST_S)

    def regret(self, now: float) -> float:
        """Decays as the count does."""
        age_s = max(0.0, now - self.regretted_s)
        return self.regret_s * math.exp(-age_s / _WINDOW_S) if self.regret_s else 0.0

    def regrets(self, excess_s: float, now: float) -> None:
        """One more request waited so much longer than it need have."""
        self.regret_s = self.regret(now) + excess_s
        self.regretted_s = now

    def coming(self, horizon_s: float, now: float) -> float:
        """Requests expected within the horizon: at the present rate, but no more than came lately.
        How long a prefix stays hot nobody knows; that it goes on as long again is a fair bet."""
        return min(horizon_s * self.rate(now), self.left(now))

    def wait_s(self, holders: int, background: float, now: float) -> float:
        """Mean wait at one of so many holders (Pollaczek-Khinchine)."""
        busy = min(_CAP, background + self.rate(now) * self.work_s / max(1, holders))
        spread = self.square / self.work_s**2 if self.work_s > 0 else 1.0
        return busy * self.work_s * max(1.0, spread) / (2 * (1 - busy))


class Heat:
    """Watched prefixes, the coldest forgotten."""

    def __init__(self) -> None:
        self._prefixes: OrderedDict[BlockHash, Prefix] = OrderedDict()
        self.copied_blocks = 0
        """Pages that copies made on purpose take, as far as they are remembered."""

    def __len__(self) -> int:
        return len(self._prefixes)

    def arrive(
        self, hashes: Sequence[BlockHash], work_s: Callable[[int], float], now: float
    ) -> None:
        """A request with this chain was placed; `work_s` of a depth is what it has to compute
        where so many of its blocks are."""
        above: BlockHash | None = None
        for depth in depths(len(hashes)):
            block = hashes[depth - 1]
            prefix = self._prefixes.get(block)
            if prefix is None:
                prefix = self._prefixes[block] = Prefix(depth, above)
            else:
                self._prefixes.move_to_end(block)
            prefix.arrive(work_s(depth), now)
            above = block
        while len(self._prefixes) > _MOST:
            _, coldest = self._prefixes.popitem(last=False)
            self.copied(coldest, -coldest.made)

    def hottest(self, hashes: Sequence[BlockHash], now: float) -> Prefix | None:
        """The deepest prefix of this chain that is about as hot as its shallowest one."""
        found: Prefix | None = None
        for depth in depths(len(hashes)):
            prefix = self._prefixes.get(hashes[depth - 1])
            rate = 0.0 if prefix is None else prefix.rate(now)
            if prefix is None or rate < _LEAST_RATE:
                break
            if found is not None and rate < _SAME_SHARE * found.rate(now):
                break
            found = prefix
        return found

    def ranked(self, now: float, most: int) -> list[tuple[BlockHash, Prefix]]:
        """The hottest of those that arrived last, hottest first. Of a chain without branches only
        the deepest one: a prefix that a deeper one stands for is left out."""
        recent = dict(islice(reversed(self._prefixes.items()), _LOOKED_AT))
        rates = {block: prefix.rate(now) for block, prefix in recent.items()}
        stood_for = {
            prefix.above
            for block, prefix in recent.items()
            if prefix.above is not None
            and rates[block] >= _SAME_SHARE * rates.get(prefix.above, math.inf)
        }
        listed = [block for block in recent if block not in stood_for]
        hottest = nlargest(most, listed, key=lambda block: rates[block] * recent[block].depth)
        return [(block, recent[block]) for block in hottest if rates[block] >= _COLD_RATE]

    def copied(self, prefix: Prefix, copies: int) -> None:
        """It has so many more copies that were made on purpose, or fewer."""
        prefix.made += copies
        self.copied_blocks += copies * prefix.depth

    def gone(self, slot: int) -> None:
        """The slot may soon be somebody else's."""
        for prefix in self._prefixes.values():
            prefix.retired &= ~(1 << slot)


@functools.lru_cache(maxsize=4096)
def depths(length: int) -> tuple[int, ...]:
    """Where arrivals are counted: powers of two above one block, and halfway between."""
    found = []
    step = 2
    while step <= length:
        found.append(step)
        if step >= 4 and step + step // 2 <= length:
            found.append(step + step // 2)
        step *= 2
    return tuple(found)
