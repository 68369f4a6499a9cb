"""The future-peak-memory estimate: worked examples, properties, and what admission makes of it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from services.decode.core.forecast import Member, future_peak
from services.decode.core.lengths import ENOUGH, PRIOR, SOME, Lengths, SurvivalTable
from services.decode.core.sequences import Sequence
from shared.wire.requests import Accepted

from .rig import Rig, job, rules

_MEMBERS = st.lists(st.builds(Member, st.integers(1, 400), st.integers(0, 200)), max_size=12)


def test_the_worked_example() -> None:
    members = [Member(100, 50), Member(200, 30), Member(150, 10)]
    assert [future_peak(members[:count]) for count in (1, 2, 3)] == [150, 360, 480]
    assert future_peak(reversed(members)) == 480
    assert future_peak([]) == 0


@given(_MEMBERS)
def test_it_is_what_growing_in_step_reaches(members: list[Member]) -> None:
    longest = max((member.left for member in members), default=0)
    held = [
        sum(member.run + grown for member in members if member.left >= grown)
        for grown in range(longest + 1)
    ]
    assert future_peak(members) == max(held)


@given(_MEMBERS, st.builds(Member, st.integers(1, 400), st.integers(0, 200)))
def test_a_newcomer_never_lowers_it(members: list[Member], newcomer: Member) -> None:
    assert future_peak([*members, newcomer]) >= future_peak(members)


def test_lengths_are_believed_when_there_are_enough() -> None:
    lengths = Lengths()
    for _ in range(SOME - 1):
        lengths.add("a", 100)
    assert (lengths.left("a", 0, 0.5), lengths.left("a", 600, 0.5)) == (PRIOR, 60)
    lengths.add("b", 100)
    assert 100 <= lengths.left("b", 0, 0.5) < 120, "a namespace borrows the common table"
    assert 10 <= lengths.left("a", 90, 0.5) < 30
    assert lengths.left("a", 5_000, 0.5) == 500, "nothing that long was seen"
    for _ in range(ENOUGH):
        lengths.add("long", 4_000)
    for _ in range(10 * ENOUGH):
        lengths.add("short", 50)
    assert lengths.left("long", 0, 0.5) >= 4_000, "its own table, once it knows enough"


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=40), st.integers(0, 60_000))
def test_a_higher_quantile_never_expects_less(seen: list[int], out: int) -> None:
    table = SurvivalTable()
    for length in seen:
        table.add(length)
    found = [table.left(out, quantile) for quantile in (0.1, 0.5, 0.95, 1.0)]
    if any(length > out for length in seen):
        known = [left for left in found if left is not None]
        assert len(known) == 4 and known == sorted(known)
        assert out + known[-1] >= max(seen)


def test_old_lengths_fade() -> None:
    table = SurvivalTable()
    for _ in range(2_000):
        table.add(1_000)
    for _ in range(2_000):
        table.add(10)
    left = table.left(0, 0.5)
    assert left is not None and left < 20


def test_who_fits_now_but_not_at_the_worst_moment_waits() -> None:
    """Both prompts fit into 20 pages; both answers would not."""
    for forecast in (True, False):
        rig = Rig(pages=20, limits=rules(forecast=forecast))
        first, second = (
            job(f"r{n}", tokens=[n, *range(15)], max_tokens=40, prefill=None) for n in range(2)
        )
        assert isinstance(rig.submit(first), Accepted)
        later = rig.submit(second)
        assert isinstance(later, Accepted) is not forecast
        rig.run()
        rig.finished(first)
        rig.finished(second)
        assert (rig.machine.counts["preemptions"] == 0) is forecast
        rig.at_rest()


def test_shared_pages_count_once() -> None:
    """Two answers to one long prompt share its pages: both fit at once."""
    rig = Rig(pages=24)
    prompt = list(range(60))
    rig.submit(job("r0", tokens=prompt, max_tokens=1, prefill=None))
    rig.run()
    jobs = [job(f"r{n}", tokens=[*prompt, n], max_tokens=8, prefill=None) for n in (1, 2)]
    assert all(isinstance(rig.submit(one), Accepted) for one in jobs)
    rig.run()
    for one in jobs:
        rig.finished(one)


def test_pages_are_never_needed_beyond_the_forecast() -> None:
    """Whatever the mix, with the longest answers assumed nobody is ever preempted."""
    for seed in range(12):
        chance = random.Random(seed)
        rig = Rig(pages=chance.choice([16, 30, 60]), limits=rules(reserve_wait_s=1e9))
        jobs = [
            job(
                f"r{n}",
                tokens=[chance.randrange(9) for _ in range(chance.randint(1, 24))],
                max_tokens=chance.randint(1, 24),
                prefill=None,
            )
            for n in range(8)
        ]
        for one in jobs:
            rig.submit(one)
            for _ in range(chance.randint(0, 6)):
                if rig.work:
                    rig.happen(rig.work.pop(0))
        rig.run()
        for one in jobs:
            rig.finished(one)
        assert rig.machine.counts["preemptions"] == 0
        rig.at_rest()


def test_the_quantile_rises_with_each_preemption_and_sinks_in_quiet() -> None:
    rig = Rig()
    forecast = rig.machine.forecast
    start = forecast.quantile
    for _ in range(20):
        forecast.preempted(rig.now)
    assert start < forecast.quantile <= 0.95
    for _ in range(60):
        rig.tick(60.0)
    assert forecast.quantile == start


def test_an_estimate_never_exceeds_what_the_job_may_generate() -> None:
    rig = Rig()
    for _ in range(ENOUGH):
        rig.machine.forecast.lengths.add("tenant", 5_000)
    rig.submit(job(max_tokens=9))
    (sequence,) = rig.machine.desk.sequences.values()
    assert isinstance(sequence, Sequence)
    assert rig.machine.forecast.left(sequence) == 9
