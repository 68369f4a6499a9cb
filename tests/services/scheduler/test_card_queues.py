"""Transfers that share a card: each is served as often as any other."""

from __future__ import annotations

import random

import pytest

from services.scheduler.core.cards import Backlog, Cards
from shared.ids import WorkerId

ONE, TWO = WorkerId("decode-1"), WorkerId("decode-2")


def test_a_short_transfer_does_not_wait_for_the_end_of_long_ones() -> None:
    backlog = Backlog((2e9, 40e9), 1e9)
    assert backlog.seconds == pytest.approx(42.0)
    assert backlog.delay_s(1e9) == pytest.approx(2.0)
    assert backlog.delay_s(3e9) == pytest.approx(5.0)
    assert backlog.delay_s(90e9) == pytest.approx(42.0)


def test_all_get_equal_parts_until_the_shortest_is_done() -> None:
    backlog = Backlog((2e9, 40e9), 1e9)
    assert backlog.after(2.0).flows == pytest.approx((1e9, 39e9))
    assert backlog.after(6.0).flows == pytest.approx((36e9,))
    assert backlog.after(42.0).flows == backlog.after(1e9).flows == ()


def test_a_card_carries_in_bytes_so_that_its_speed_may_be_learnt_later() -> None:
    cards = Cards()
    cards.add(ONE, 4e9, 1e9, 0.0)
    cards.add(ONE, 2e9, 1e9, 1.0)
    assert cards.left(ONE, 1e9, 1.0) == pytest.approx((2e9, 3e9))
    assert cards.left(ONE, 1e9, 5.0) == pytest.approx((1e9,))
    assert cards.left(ONE, 1e8, 5.0) == pytest.approx((1.8e9, 2.8e9))
    assert cards.left(TWO, 1e9, 5.0) == () == cards.left(ONE, 1e9, 9.0)
    assert cards.left(ONE, 1e9, 0.5) == pytest.approx((2e9, 3e9)), "a clock that went back"


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


def test_many_transfers_on_one_card_keep_their_bytes_and_a_bound() -> None:
    cards = Cards()
    for number in range(1_000):
        cards.add(ONE, float(number), 0.0, 0.0)
    left = cards.left(ONE, 0.0, 0.0)
    assert sum(left) == pytest.approx(sum(range(1_000))) and len(left) == 64
