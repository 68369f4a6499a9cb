"""What network cards have to carry, from placements alone: transfers that share a card are carried
at once, each at an equal part of its speed, as TCP and RDMA congestion control divide it.

Bytes and not seconds, so that what is learnt of a card's speed counts for what waits already.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from shared.ids import WorkerId

_MOST_CARDS: Final = 65_536
_MOST_FLOWS: Final = 64
"""On one card; of more, the two longest count as one."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """One card's transfers under way."""

    flows: tuple[float, ...]
    """Bytes that each has left, the shortest first."""
    bytes_per_s: float

    @property
    def seconds(self) -> float:
        """Until nothing of it is left."""
        return sum(self.flows) / self.bytes_per_s

    def delay_s(self, size_bytes: float) -> float:
        """By how much it delays a transfer of so many bytes that begins now: each of the others is
        served as often as this one, for as long as it lasts."""
        return sum(min(left, size_bytes) for left in self.flows) / self.bytes_per_s

    def after(self, seconds: float) -> Backlog:
        """What is left of it then, if nothing comes."""
        return replace(self, flows=_carried(self.flows, self.bytes_per_s * seconds))


IDLE: Final = Backlog((), 1.0)
"""Nothing to carry."""


class Cards:
    """One direction of all workers' cards: what they have to send, or to receive. `carried_per_s`
    is what a card has done since it was last asked for; the cards that were idle longest are
    forgotten."""

    def __init__(self) -> None:
        self._cards: OrderedDict[WorkerId, tuple[tuple[float, ...], float]] = OrderedDict()

    def add(self, worker: WorkerId, size_bytes: float, carried_per_s: float, now: float) -> None:
        """One more transfer."""
        flows = list(self.left(worker, carried_per_s, now))
        insort(flows, size_bytes)
        if len(flows) > _MOST_FLOWS:
            flows.append(flows.pop() + flows.pop())
        self._cards[worker] = tuple(flows), now
        self._cards.move_to_end(worker)
        if len(self._cards) > _MOST_CARDS:
            self._cards.popitem(last=False)

    def left(self, worker: WorkerId, carried_per_s: float, now: float) -> tuple[float, ...]:
        """Bytes that each of its transfers has left, the shortest first."""
        known = self._cards.get(worker)
        if known is None:
            return ()
        flows, since_s = known
        return _carried(flows, carried_per_s * (now - since_s))


def _carried(flows: tuple[float, ...], size_bytes: float) -> tuple[float, ...]:
    """What is left of each after so many bytes in all: equally many of each that is not done."""
    if size_bytes <= 0.0 or not flows:
        return flows
    done, served = 0, 0.0
    for left in flows:
        needs = (left - served) * (len(flows) - done)
        if needs > size_bytes:
            break
        size_bytes -= needs
        served = left
        done += 1
    else:
        return ()
    served += size_bytes / (len(flows) - done)
    return tuple(left - served for left in flows[done:])
