"""What is believed of a card: the fastest of its newest reads, for a while."""

from __future__ import annotations

import pytest

from shared.bandwidth import Bandwidth
from shared.costs import LinkCosts

SHIPPED = LinkCosts(0.001, 1e9)


def test_until_the_first_read_it_is_what_is_shipped() -> None:
    speed = Bandwidth(SHIPPED)
    assert speed.link == SHIPPED and not speed.known(0.0)
    speed.add(10**9, 0.501, 5.0)
    assert speed.link == LinkCosts(0.001, pytest.approx(2e9))
    assert speed.known(64.9) and not speed.known(65.1)


def test_one_slow_read_is_forgotten_after_sixteen_others_and_one_fast_one_says_nothing() -> None:
    speed = Bandwidth(SHIPPED)
    for _ in range(8):
        speed.add(10**8, 0.101, 0.0)
    speed.add(10**8, 100.0, 0.0)
    speed.add(10**8, 0.0011, 0.0)
    assert speed.link.bytes_per_s == pytest.approx(1e9)
    for _ in range(16):
        speed.add(10**8, 1.001, 0.0)
    assert speed.link.bytes_per_s == pytest.approx(1e8)


def test_a_read_as_short_as_the_set_up_is_half_of_it() -> None:
    speed = Bandwidth(SHIPPED)
    speed.add(1000, 0.001, 0.0)
    assert speed.link.bytes_per_s == pytest.approx(1000 / 0.0005)
