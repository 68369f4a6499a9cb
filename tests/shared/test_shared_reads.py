"""How long a read would have taken alone, from reads that went together."""

from __future__ import annotations

import pytest

from shared.shared_reads import SharedReads


def test_a_read_that_went_alone_took_what_it_took() -> None:
    reads = SharedReads()
    assert reads.alone_s(100, 2.0, 2.0) == pytest.approx(2.0)
    assert reads.alone_s(100, 3.0, 5.0) == pytest.approx(3.0), "the other had just ended"


def test_two_that_went_together_took_half_as_long_each() -> None:
    """Whoever ends first knows nothing of how far the other has come."""
    reads = SharedReads()
    assert reads.alone_s(100, 2.0, 2.0) == pytest.approx(2.0)
    assert reads.alone_s(100, 2.0, 2.0) == pytest.approx(1.0)


def test_only_the_shared_part_of_another_read_counts() -> None:
    reads = SharedReads()
    reads.alone_s(300, 3.0, 3.0)
    assert reads.alone_s(200, 2.0, 4.0) == pytest.approx(2.0 * 200 / 300)


def test_what_makes_no_sense_is_no_speed() -> None:
    reads = SharedReads()
    assert reads.alone_s(0, 1.0, 1.0) == 1.0 and reads.alone_s(5, 0.0, 1.0) == 0.0
    assert reads.alone_s(5, -1.0, 1.0) == 0.0
    assert reads.alone_s(100, 1.0, 1.0) == pytest.approx(1.0)


def test_it_keeps_the_newest_reads_alone() -> None:
    reads = SharedReads()
    for _ in range(1_000):
        reads.alone_s(100, 1.0, 1.0)
    assert reads.alone_s(100, 1.0, 1.0) == pytest.approx(1 / 65)
