"""Stop strings are found wherever the pieces were cut, and nothing of them is shown."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.stops import StopMatcher


def shown(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = "".join(matcher.feed(piece) for piece in pieces)
    return text + ("" if matcher.matched else matcher.finish()), matcher.matched


@pytest.mark.parametrize(
    "pieces",
    [
        ["ABCDEFGHIJK"],
        ["ABC", "DEF", "G", "HI", "J"],
        list("ABCDEFGHIJ"),
        ["ABCD", "EFGHIJ"],
    ],
)
def test_a_stop_over_any_number_of_pieces(pieces: list[str]) -> None:
    assert shown(["DEFGHIJ"], pieces) == ("ABC", True)


def test_a_stop_inside_a_piece_cuts_it() -> None:
    assert shown([";"], ["ij;k"]) == ("ij", True)


def test_held_back_text_is_shown_when_it_was_no_stop() -> None:
    matcher = StopMatcher(["DEFG"])
    assert matcher.feed("ABCDE") == "ABC"
    assert matcher.feed("X") == "DEX"
    assert matcher.feed("DEF") == ""
    assert matcher.finish() == "DEF"


def test_the_stop_that_is_complete_first_wins() -> None:
    assert shown(["abcd", "bc"], ["abcd"]) == ("a", True)
    assert shown(["abcd", "bc"], list("abcd")) == ("a", True)


def test_nothing_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.feed("ax") == "a"
    assert matcher.feed("b") == ""


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    st.text("abc", max_size=30),
    st.lists(st.integers(0, 30), max_size=10),
)
def test_cuts_change_nothing(stops: list[str], text: str, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    whole = shown(stops, [text])
    assert shown(stops, pieces) == whole
    assert shown(stops, list(text)) == whole
    for stop in stops:
        assert stop not in whole[0]
