"""How the calibrating load is sent."""

from __future__ import annotations

from collections import Counter

import pytest

from loadgen.sim_vs_live import CALIBRATES, COMPARED, in_groups


def test_calibrating_requests_come_in_groups_at_the_rate() -> None:
    times = in_groups(2.0, 32)
    assert len(times) == 32
    assert list(times) == sorted(times)
    assert sorted(set(Counter(times).values())) == [1, 2, 4, 8]
    # The next group comes when the one before has had its share of time.
    assert times[:6] == pytest.approx((0.0, 0.5, 0.5, 0.5, 0.5, 2.5))
    assert len(in_groups(1.0, 3)) == 3


def test_no_compared_load_has_the_lengths_of_the_calibrating_one() -> None:
    assert not {words for load in COMPARED for words in load.words} & set(CALIBRATES.words)
    assert not {count for load in COMPARED for count in load.tokens} & set(CALIBRATES.tokens)


def test_each_prompt_of_the_calibrating_load_meets_each_length_of_answers() -> None:
    words, tokens = CALIBRATES.words, CALIBRATES.tokens
    met = {(words[n % len(words)], tokens[n % len(tokens)]) for n in range(32)}
    assert len(met) == len(words) * len(tokens) == 6
