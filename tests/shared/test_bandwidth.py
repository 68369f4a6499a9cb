"""What is believed of a card: the fastest of its newest reads, for a while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bandwidth import Bandwidth
from shared.costs import LinkCosts

SHIPPED = LinkCosts(0.001, 1e9)


def test_until_the_first_read_it_is_what_is_shipped() -> None:
    speed = Bandwidth(SHIPPED)
    assert speed.link == SHIPPED and not speed.known(0.0)
    speed.add(10**9, 0.501, 5.0)
    assert speed.link == LinkCosts(0.001, pytest.approx(2e9))
    assert speed.known(64.9) and not speed.known(65.1)


def test_one_slow_read_says_nothing_nor_does_one_fast_one_and_a_slower_card_is_noticed() -> None:
    speed = Bandwidth(SHIPPED)
    for _ in range(8):
        speed.add(10**8, 0.101, 0.0)
    speed.add(10**8, 100.0, 0.0)
    speed.add(10**8, 0.0011, 0.0)
    assert speed.link.bytes_per_s == pytest.approx(1e9)
    for _ in range(16):
        speed.add(10**8, 1.001, 20.0)
    assert speed.link.bytes_per_s == pytest.approx(1e9), "within half a minute it was faster"
    speed.add(10**8, 1.001, 31.5)
    assert speed.link.bytes_per_s == pytest.approx(1e8)


def test_a_card_that_seldom_reads_is_judged_by_sixteen_reads_however_old() -> None:
    speed = Bandwidth(SHIPPED)
    for second in range(0, 150, 10):
        speed.add(10**8, 0.101 if second < 20 else 1.001, float(second))
        assert not speed.sure(second)
    assert speed.link.bytes_per_s == pytest.approx(1e9)
    speed.add(10**8, 1.001, 150.0)
    assert speed.sure(150.0) and not speed.sure(210.1)
    assert speed.link.bytes_per_s == pytest.approx(1e9), "sixteen, two of them fast"
    speed.add(10**8, 1.001, 160.0)
    assert speed.link.bytes_per_s == pytest.approx(1e8), "the one that is left may be an error"


@given(
    st.lists(
        st.tuples(st.floats(0.0, 5.0), st.integers(1, 10**9), st.floats(1e-4, 10.0)), min_size=4
    )
)
def test_it_is_the_fastest_but_one_of_what_is_looked_back_on(
    reads: list[tuple[float, int, float]],
) -> None:
    """Against keeping every read: moments are whole, so what is old goes with its second."""
    speed, kept, now = Bandwidth(SHIPPED), [], 0.0
    begun_s: list[float] = []
    for gap_s, size_bytes, seconds in reads:
        now += gap_s
        if not begun_s or now - begun_s[-1] >= 1.0:
            begun_s.append(now)
        kept.append((begun_s[-1], size_bytes / max(seconds - 0.001, 0.5 * seconds)))
        while now - kept[0][0] > 30.0:
            first = [entry for entry in kept if entry[0] == kept[0][0]]
            if len(kept) - len(first) < 16:
                break
            kept = kept[len(first) :]
        speed.add(size_bytes, seconds, now)
        fastest = sorted(rate for _, rate in kept)
        expected = fastest[-1] if len(kept) < 4 else fastest[-2]
        assert speed.link.bytes_per_s == pytest.approx(expected)


def test_a_read_as_short_as_the_set_up_is_half_of_it() -> None:
    speed = Bandwidth(SHIPPED)
    speed.add(1000, 0.001, 0.0)
    assert speed.link.bytes_per_s == pytest.approx(1000 / 0.0005)
