"""Each token once, in order, whatever the weather does to the messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.ordering import MAX_PENDING, TokenOrder
from shared.ids import Attempt
from shared.wire.sampling import TokenLogprobs


def order(limit: int = 100, attempt: int = 1) -> TokenOrder:
    made = TokenOrder(limit)
    made.begin(Attempt(attempt))
    return made


def test_entries_out_of_order_come_out_in_order() -> None:
    stream = order()
    assert stream.take(Attempt(1), 1, (11,), None).token_ids == ()
    assert stream.has_gap
    assert stream.take(Attempt(1), 0, (10,), None).token_ids == (10, 11)
    assert not stream.has_gap
    last = stream.take(Attempt(1), 2, (12,), "stop")
    assert (last.token_ids, last.finish) == ((12,), "stop")
    assert stream.take(Attempt(1), 2, (12,), "stop").dropped == "ended"


def test_an_overlapping_entry_gives_only_what_is_new() -> None:
    stream = order()
    stream.take(Attempt(1), 0, (1, 2, 3), None)
    assert stream.take(Attempt(1), 1, (2, 3), None).dropped == "duplicate"
    assert stream.take(Attempt(1), 1, (2, 3, 4), None).token_ids == (4,)


def test_an_older_attempt_is_stale_and_its_waiting_entries_are_forgotten() -> None:
    stream = order()
    stream.take(Attempt(1), 0, (1,), None)
    stream.take(Attempt(1), 5, (9,), None)
    stream.begin(Attempt(2))
    assert stream.take(Attempt(1), 1, (2,), None).dropped == "stale"
    assert stream.take(Attempt(2), 1, (3, 4, 5, 6), None).token_ids == (3, 4, 5, 6)
    assert stream.emitted == (1, 3, 4, 5, 6)


def test_the_limit_ends_the_stream_even_if_the_worker_does_not_say_so() -> None:
    stream = order(limit=3)
    assert stream.take(Attempt(1), 0, (1, 2, 3, 4), None).dropped == "malformed"
    assert stream.take(Attempt(1), 0, (1, 2, 3), None).finish == "length"


def test_nonsense_is_dropped() -> None:
    stream = order()
    assert stream.take(Attempt(1), -1, (1,), None).dropped == "malformed"
    assert stream.take(Attempt(1), 0, (1,), "tired").dropped == "malformed"


def test_waiting_entries_are_bounded() -> None:
    stream = order(limit=10**6)
    for index in range(1, MAX_PENDING + 1):
        assert stream.take(Attempt(1), 2 * index, (1,), None).dropped is None
    assert stream.take(Attempt(1), 10**5, (1,), None).dropped == "overflow"


def test_an_empty_entry_says_only_alive_or_the_end() -> None:
    stream = order()
    assert stream.take(Attempt(1), 0, (), None).dropped is None
    assert stream.take(Attempt(1), 0, (), "stop").finish == "stop"


@st.composite
def weather(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    tokens = draw(st.lists(st.integers(0, 9), min_size=1, max_size=20))
    cuts = st.tuples(st.integers(0, len(tokens) - 1), st.integers(1, 6))
    entries = draw(st.lists(cuts, max_size=30))
    whole = [(start, 2) for start in range(0, len(tokens), 2)]
    return tokens, draw(st.permutations(entries + whole))


@given(weather())
def test_any_mix_of_late_repeated_overlapping_entries(
    case: tuple[list[int], list[tuple[int, int]]],
) -> None:
    tokens, entries = case
    stream, shown, finishes = order(), list[int](), list[str]()
    for start, size in entries:
        part = tuple(tokens[start : start + size])
        finish = "stop" if start + len(part) == len(tokens) else None
        taken = stream.take(Attempt(1), start, part, finish)
        stream.check()
        shown += taken.token_ids
        finishes += [taken.finish] if taken.finish else []
    assert shown == tokens
    assert finishes == ["stop"]


def test_check_tells_a_broken_stream() -> None:
    stream = order(limit=1)
    stream._emitted += [1, 2]
    with pytest.raises(AssertionError, match="more tokens"):
        stream.check()


def test_tokens_bring_their_logprobs_where_the_stream_has_them() -> None:
    order = TokenOrder(9, told=True)
    order.begin(Attempt(1))
    told = tuple(TokenLogprobs(-0.5 * at) for at in range(6))
    assert order.take(Attempt(1), 0, (5, 6), None).dropped == "malformed"
    assert order.take(Attempt(1), 0, (5, 6), None, told[:1]).dropped == "malformed"
    assert order.take(Attempt(1), 3, (8,), None, told[3:4]).token_ids == ()
    assert order.take(Attempt(1), 0, (5, 6), None, told[:2]).logprobs == told[:2]
    taken = order.take(Attempt(1), 1, (6, 7), None, told[1:3])
    assert (taken.token_ids, taken.logprobs) == ((7, 8), told[2:4])
    end = order.take(Attempt(1), 4, (9,), "stop", told[4:5])
    assert (end.finish, end.logprobs) == ("stop", told[4:5])
    order.check()
    silent = TokenOrder(9)
    silent.begin(Attempt(1))
    assert silent.take(Attempt(1), 0, (5,), None, told[:1]).logprobs == ()
