"""What network cards have to carry: as their readers report it, and what was placed since.

Transfers that share a card are carried at once, each at an equal part of its speed, as TCP and RDMA
congestion control divide it. Bytes and not seconds, so that what is learnt of a card's speed counts
for what is on its way already.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shared.ids import WorkerId

_MOST_FLOWS: Final = 256
"""Of one reader."""
_LATE_S: Final = 10.0
"""After which a placement that its reader has not reported never came to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """One transfer."""

    reader: WorkerId
    owner: WorkerId
    size_bytes: float
    since_s: float
    """When it had so much left."""
    sequence: int
    """Of the placement; 0 of what its reader reported."""


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
        return sum([min(left, size_bytes) for left in self.flows]) / self.bytes_per_s

    def after(self, seconds: float) -> Backlog:
        """What is left of it then, if nothing comes: equal parts of each that is not done."""
        carried, served = self.bytes_per_s * seconds, 0.0
        for done, left in enumerate(self.flows):
            others = len(self.flows) - done
            if (left - served) * others > carried:
                served += carried / others
                return Backlog(tuple([f - served for f in self.flows[done:]]), self.bytes_per_s)
            carried -= (left - served) * others
            served = left
        return Backlog((), self.bytes_per_s)


IDLE: Final = Backlog((), 1.0)
"""Nothing to carry."""


class Cards:
    """All flows by reader and by owner. Each report of a reader replaces what it has seen."""

    def __init__(self) -> None:
        self._to: dict[WorkerId, list[Flow]] = {}
        self._from: defaultdict[WorkerId, dict[Flow, None]] = defaultdict(dict)

    def placed(self, flow: Flow) -> None:
        """One more; of too many the oldest is forgotten."""
        flows = self._to.setdefault(flow.reader, [])
        if len(flows) >= _MOST_FLOWS:
            self._end(flows.pop(0))
        self._begin(flows, flow)

    def reported(
        self, reader: WorkerId, seen: int, left: Iterable[tuple[WorkerId, float]], now: float
    ) -> set[WorkerId]:
        """What a reader has left of each owner, placements up to `seen` included. The owners whose
        cards changed."""
        before = self._to.pop(reader, [])
        for flow in before:
            self._end(flow)
        flows: list[Flow] = []
        for owner, size_bytes in left:
            self._begin(flows, Flow(reader, owner, size_bytes, now, 0))
        for flow in before:
            if flow.sequence > seen and now - flow.since_s < _LATE_S:
                self._begin(flows, flow)
        if flows:
            self._to[reader] = flows
        return {flow.owner for flow in (*before, *flows)}

    def forget(self, reader: WorkerId) -> None:
        """It is gone. What others read from it they will report no more."""
        self.reported(reader, sys.maxsize, (), 0.0)

    def to(self, reader: WorkerId) -> Iterable[Flow]:
        """What the card of this reader has to receive."""
        return self._to.get(reader, ())

    def of(self, owner: WorkerId) -> Iterable[Flow]:
        """What the card of this owner has to send."""
        return self._from.get(owner, ())

    def _begin(self, flows: list[Flow], flow: Flow) -> None:
        flows.append(flow)
        self._from[flow.owner][flow] = None

    def _end(self, flow: Flow) -> None:
        sent = self._from[flow.owner]
        del sent[flow]
        if not sent:
            del self._from[flow.owner]


def backlog(flows: Iterable[Flow], bytes_per_s: float, now: float) -> Backlog:
    """What is left of them, each of which had an equal part of the card since it was told of."""
    known = list(flows)
    if not known:
        return Backlog((), bytes_per_s)
    part_per_s = bytes_per_s / len(known)
    left = [flow.size_bytes - part_per_s * max(0.0, now - flow.since_s) for flow in known]
    return Backlog(tuple(sorted([size for size in left if size > 0.0])), bytes_per_s)
