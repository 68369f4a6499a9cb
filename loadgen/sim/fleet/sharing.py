"""Flows that share cards, as TCP and RDMA congestion control share them: max-min fair.

Nobody's flow can be made faster without slowing one that is not faster (Bertsekas and Gallager,
Data Networks, 6.5.2): progressive filling finds the rates, anew whenever a flow begins or ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from loadgen.sim.clock import EventHeap

_DONE_BYTES: Final = 1e-3
"""What rounding leaves of a flow."""


@dataclass(slots=True, eq=False)
class Card:
    """One direction of a worker's network card."""

    bytes_per_s: float


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way from one card to another."""

    cards: tuple[Card, Card]
    left: float
    """Bytes, at `since_s`."""
    done: Callable[[], None]
    rate: float = 0.0
    """Bytes per second, since `since_s`."""
    since_s: float = 0.0
    turn: int = 0
    """Of its rates: the end that an older one promised counts no more."""


class FairShare:
    """All flows of a fleet on virtual time."""

    def __init__(self, heap: EventHeap) -> None:
        self._heap = heap
        self._on: defaultdict[Card, dict[Flow, None]] = defaultdict(dict)

    def begin(
        self, sends: Card, receives: Card, size_bytes: float, done: Callable[[], None]
    ) -> None:
        """`done` is called once, when all bytes are there."""
        flow = Flow((sends, receives), max(size_bytes, _DONE_BYTES), done, since_s=self._heap.now_s)
        for card in flow.cards:
            self._on[card][flow] = None
        self._share(flow.cards)

    def _end(self, flow: Flow, turn: int) -> None:
        if turn != flow.turn:
            return
        for card in flow.cards:
            del self._on[card][flow]
        self._share(flow.cards)
        flow.done()

    def _share(self, touched: Iterable[Card]) -> None:
        """New rates for all flows that what happened on these cards can reach. Of flows that reach
        each other the first that will end is called for: then they share anew."""
        seen: set[Card] = set()
        for card in touched:
            flows = self._reached(card, seen)
            for flow, rate in _filled(flows) if flows else ():
                self._paced(flow, rate)
            if flows:
                first = min(flows, key=_ends_s)
                self._heap.at(_ends_s(first), partial(self._end, first, first.turn))

    def _paced(self, flow: Flow, rate: float) -> None:
        flow.turn += 1
        if rate == flow.rate:
            return
        now_s = self._heap.now_s
        flow.left = max(0.0, flow.left - flow.rate * (now_s - flow.since_s))
        flow.rate, flow.since_s = rate, now_s

    def _reached(self, first: Card, seen: set[Card]) -> dict[Flow, None]:
        """All flows that this card's share cards with, directly or not; cards are seen once."""
        found: dict[Flow, None] = {}
        waiting = [first]
        while waiting:
            card = waiting.pop()
            if card in seen:
                continue
            seen.add(card)
            for flow in self._on[card]:
                found[flow] = None
                waiting += flow.cards
        return found


def _ends_s(flow: Flow) -> float:
    return flow.since_s + flow.left / flow.rate


def _filled(flows: dict[Flow, None]) -> Iterable[tuple[Flow, float]]:
    """Progressive filling: the card with the least for each of its flows settles theirs."""
    if len(flows) == 1:
        (flow,) = flows
        yield flow, min(card.bytes_per_s for card in flow.cards)
        return
    waiting: defaultdict[Card, dict[Flow, None]] = defaultdict(dict)
    for flow in flows:
        for card in flow.cards:
            waiting[card][flow] = None
    spare = {card: card.bytes_per_s for card in waiting}
    while waiting:
        tightest = min(waiting, key=lambda card: spare[card] / len(waiting[card]))
        rate = spare[tightest] / len(waiting[tightest])
        for flow in waiting.pop(tightest):
            yield flow, rate
            (other,) = (card for card in flow.cards if card is not tightest)
            spare[other] -= rate
            del waiting[other][flow]
            if not waiting[other]:
                del waiting[other]
