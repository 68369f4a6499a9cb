"""The faults that last for a while: which messages, pages and steps they hit.

What happens to a message follows from its bytes, and each window draws for itself: so leaving
out a fault or a request changes little for the others, and broken cases can be made small.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from loadgen.sim import costs
from loadgen.sim.case import Fault
from loadgen.sim.clock import EventHeap

BUS: Final = frozenset(
    ("cut_control", "message_delay", "message_loss", "message_duplicate", "message_reorder")
)
PLANE: Final = frozenset(
    (
        "cut_plane",
        "page_late",
        "page_torn",
        "page_unsettled",
        "report_twice",
        "bit_flip_wire",
        "slow_link",
    )
)
WINDOWS: Final = BUS | PLANE | {"engine_error"}


@dataclass(frozen=True, slots=True)
class Passage:
    """One copy of a message on one hop."""

    delay_s: float
    in_order: bool


class Weather:
    """Asked at each hop, piece and step. `fired` counts what was really hit."""

    def __init__(self, seed: int, faults: Sequence[Fault], heap: EventHeap) -> None:
        self.fired: Counter[str] = Counter()
        self.calm = False
        """Set when the faults are over: nothing is hit any more."""
        self._heap = heap
        self._seed = seed
        self._windows: dict[str, list[tuple[Fault, random.Random]]] = {}
        for fault in faults:
            if fault.kind in WINDOWS:
                chance = random.Random(f"{seed} {fault.kind} {fault.at_s} {fault.host}")
                self._windows.setdefault(fault.kind, []).append((fault, chance))
        self._bus = any(kind in BUS for kind in self._windows)
        self._hops: Counter[tuple[str, str, int]] = Counter()

    def hit(self, kind: str, host: str = "", way: str = "") -> Fault | None:
        """The window of this kind that strikes now, if one does."""
        if self.calm:
            return None
        for fault, chance in self._windows.get(kind, ()):
            inside = fault.at_s <= self._heap.now_s < fault.at_s + fault.for_s
            ours = (not fault.host or fault.host == host) and (not fault.way or fault.way == way)
            if inside and ours and chance.random() < fault.rate:
                self.fired[kind] += 1
                return fault
        return None

    def passages(self, host: str, way: str, mark: int) -> list[Passage]:
        """The copies of a message that pass between a host and the message server. `mark` tells
        messages apart by their content."""
        hop = (host, way, mark)
        self._hops[hop] += 1
        luck = _Luck(f"{self._seed} {hop} {self._hops[hop]}")
        usual_s = costs.message_s(luck.draw("usual"))
        if self.calm or not self._bus:
            return [Passage(usual_s, in_order=True)]
        if self._struck("cut_control", host, way, luck):
            return []
        if self._struck("message_loss", host, way, luck):
            return []
        late_s = self._late_s("message_delay", host, luck)
        reordered_s = self._late_s("message_reorder", host, luck)
        copies = [Passage(usual_s + late_s + reordered_s, in_order=reordered_s == 0.0)]
        again_s = self._late_s("message_duplicate", host, luck)
        if again_s:
            copies.append(Passage(usual_s + again_s, in_order=False))
        return copies

    def _struck(self, kind: str, host: str, way: str, luck: _Luck) -> Fault | None:
        """Like `hit`, by the message's own luck."""
        for index, (fault, _) in enumerate(self._windows.get(kind, ())):
            inside = fault.at_s <= self._heap.now_s < fault.at_s + fault.for_s
            ours = (not fault.host or fault.host == host) and (not fault.way or fault.way == way)
            if inside and ours and luck.draw(f"{kind} {index}") < fault.rate:
                self.fired[kind] += 1
                return fault
        return None

    def _late_s(self, kind: str, host: str, luck: _Luck) -> float:
        fault = self._struck(kind, host, "", luck)
        return 0.0 if fault is None else fault.amount * (0.01 + luck.draw(kind))


class _Luck:
    """Numbers in [0, 1) that belong to one passage of one message."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def draw(self, what: str) -> float:
        return float(xxhash.xxh3_64_intdigest(f"{self._mark} {what}".encode())) / 2**64
