"""Flows that share cards: max-min fair, and never more than a card carries."""

from __future__ import annotations

import random

import pytest

from loadgen.sim.clock import EventHeap
from loadgen.sim.fleet.sharing import Card, FairShare


def run(flows: list[tuple[float, Card, Card, float]]) -> list[float]:
    """When each ends, of (begins, sends, receives, bytes)."""
    heap, ends = EventHeap(), [0.0] * len(flows)
    share = FairShare(heap)

    def begin(number: int, sends: Card, receives: Card, size_bytes: float) -> None:
        def done() -> None:
            assert ends[number] == 0.0
            ends[number] = heap.now_s

        share.begin(sends, receives, size_bytes, done)

    for number, (begins_s, *rest) in enumerate(flows):
        heap.at(begins_s, lambda n=number, r=rest: begin(n, *r))  # type: ignore[misc]
    while True:
        try:
            heap.next()
        except IndexError:
            return ends


def test_alone_a_flow_has_the_slower_of_its_cards() -> None:
    assert run([(1.0, Card(2.0), Card(5.0), 10.0)]) == pytest.approx([6.0])
    assert run([(1.0, Card(5.0), Card(2.0), 0.0)]) == pytest.approx([1.0], abs=0.01)


def test_two_on_one_card_have_half_each_until_one_is_done() -> None:
    sends, one, two = Card(1.0), Card(1.0), Card(1.0)
    assert run([(0.0, sends, one, 1.0), (0.0, sends, two, 3.0)]) == pytest.approx([2.0, 4.0])
    assert run([(0.0, one, sends, 1.0), (0.5, two, sends, 3.0)]) == pytest.approx([1.5, 4.0])


def test_what_a_flow_cannot_use_goes_to_the_others() -> None:
    """Three of one sender; one of them meets a slow reader: the others share what is left."""
    sends, slow = Card(9.0), Card(1.0)
    flows = [(0.0, sends, slow, 1.0), (0.0, sends, Card(9.0), 4.0), (0.0, sends, Card(9.0), 4.0)]
    assert run(flows) == pytest.approx([1.0, 1.0, 1.0])


def test_who_waits_for_a_busy_card_holds_up_nobody() -> None:
    """A reader of a busy owner goes on reading from an idle one at full speed, almost."""
    busy, idle, reader = Card(1.0), Card(1.0), Card(1.0)
    flows = [(0.0, busy, Card(1.0), 50.0) for _ in range(9)]
    ends = run([*flows, (0.0, busy, reader, 1.0), (0.0, idle, reader, 0.9)])
    assert ends[-1] == pytest.approx(1.0) and ends[-2] == pytest.approx(10.0)


def test_all_bytes_arrive_and_no_card_carries_more_than_it_can() -> None:
    dice = random.Random(11)
    for _ in range(20):
        cards = [Card(dice.uniform(0.5, 4.0)) for _ in range(6)]
        flows = [
            (
                dice.uniform(0.0, 5.0),
                dice.choice(cards[:3]),
                dice.choice(cards[3:]),
                dice.uniform(0.0, 9.0),
            )
            for _ in range(15)
        ]
        ends = run(flows)
        for flow, end in zip(flows, ends, strict=True):
            fastest = min(flow[1].bytes_per_s, flow[2].bytes_per_s)
            assert end >= flow[0] + flow[3] / fastest - 1e-6
        for card in cards:
            own = [(flow, end) for flow, end in zip(flows, ends, strict=True) if card in flow[1:3]]
            if own:
                begins_s, last_s = min(flow[0] for flow, _ in own), max(end for _, end in own)
                carried = sum(flow[3] for flow, _ in own)
                assert carried <= card.bytes_per_s * (last_s - begins_s) + 0.1
