"""What cards carry: as readers report it, and what was placed since."""

from __future__ import annotations

import random

import pytest

from services.scheduler.core.cards import Backlog, Cards, Flow, backlog
from shared.ids import WorkerId

ONE, TWO = WorkerId("decode-1"), WorkerId("decode-2")
P, Q = WorkerId("prefill-1"), WorkerId("prefill-2")


def sizes(flows: object) -> list[float]:
    return sorted(flow.size_bytes for flow in flows)  # type: ignore[attr-defined]


def test_a_short_transfer_does_not_wait_for_the_end_of_long_ones() -> None:
    found = Backlog((2e9, 40e9), 1e9)
    assert found.seconds == pytest.approx(42.0)
    assert found.delay_s(1e9) == pytest.approx(2.0)
    assert found.delay_s(3e9) == pytest.approx(5.0)
    assert found.delay_s(90e9) == pytest.approx(42.0)


def test_all_get_equal_parts_until_the_shortest_is_done() -> None:
    found = Backlog((2e9, 40e9), 1e9)
    assert found.after(2.0).flows == pytest.approx((1e9, 39e9))
    assert found.after(6.0).flows == pytest.approx((36e9,))
    assert found.after(42.0).flows == found.after(1e9).flows == ()
    assert found.after(0.0) == found


def test_it_is_what_a_fair_card_does_step_by_step() -> None:
    """Against serving a little of each in turn."""
    dice = random.Random(3)
    for _ in range(20):
        flows = sorted(dice.uniform(0.1, 5.0) for _ in range(dice.randint(1, 8)))
        seconds, step_s, left = dice.uniform(0.0, sum(flows)), 0.0005, list(flows)
        for _ in range(round(seconds / step_s)):
            waiting = [at for at, bytes_ in enumerate(left) if bytes_ > 0.0]
            for at in waiting:
                left[at] -= step_s / len(waiting)
        slow = [bytes_ for bytes_ in left if bytes_ > 0.01]
        found = Backlog(tuple(flows), 1.0).after(seconds).flows
        assert [bytes_ for bytes_ in found if bytes_ > 0.01] == pytest.approx(slow, abs=0.02)


def test_a_report_replaces_what_its_worker_had_seen() -> None:
    cards = Cards()
    cards.placed(Flow(ONE, P, 4.0, 1.0, 7))
    cards.placed(Flow(ONE, P, 5.0, 1.0, 8))
    cards.placed(Flow(TWO, P, 6.0, 1.0, 9))
    assert cards.reported(ONE, 7, [(P, 3.0), (Q, 1.0)], 1.5) == {P, Q}
    assert sizes(cards.to(ONE)) == [1.0, 3.0, 5.0], "8 had not come to it yet"
    assert sizes(cards.of(P)) == [3.0, 5.0, 6.0] and sizes(cards.of(Q)) == [1.0]
    assert cards.reported(ONE, 8, [], 2.0) == {P, Q}
    assert sizes(cards.to(ONE)) == [] and sizes(cards.of(P)) == [6.0] and not cards.of(Q)


def test_a_placement_that_never_came_to_its_worker_is_given_up() -> None:
    cards = Cards()
    cards.placed(Flow(ONE, P, 4.0, 1.0, 7))
    cards.reported(ONE, 6, [], 10.0)
    assert sizes(cards.of(P)) == [4.0]
    cards.reported(ONE, 6, [], 11.1)
    assert not cards.of(P) and not cards.to(ONE)


def test_who_is_gone_reads_nothing_and_too_many_are_none() -> None:
    cards = Cards()
    for number in range(1_000):
        cards.placed(Flow(ONE, P, float(number), 0.0, number))
    assert len(sizes(cards.to(ONE))) == len(sizes(cards.of(P))) == 256
    assert min(sizes(cards.of(P))) == 744.0, "the oldest were forgotten"
    cards.forget(ONE)
    assert not cards.to(ONE) and not cards.of(P)


def test_since_it_was_told_each_flow_had_its_part_of_the_card() -> None:
    flows = [Flow(ONE, P, 4e9, 1.0, 0), Flow(ONE, Q, 2e9, 2.0, 0)]
    assert backlog(flows, 1e9, 3.0) == Backlog((1.5e9, 3e9), 1e9)
    assert backlog(flows, 1e9, 0.0).flows == (2e9, 4e9), "a clock that went back"
    assert backlog(flows, 1e9, 99.0) == Backlog((), 1e9) == backlog([], 1e9, 0.0)
