"""Colocated prompts that share a head: computed once, in any weather, with the same tokens."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.decode.core import actions as do
from services.decode.core import events as on
from shared.costs import WorkCosts
from shared.ids import RequestId
from shared.wire.requests import Accepted, DecodeJob

from .rig import BLOCK, Rig, job, rules

COSTS = WorkCosts(0.0, 0.001, 0.0, 0.02, 0.001)
HEAD = [100 + at for at in range(6 * BLOCK)]


def sibling(name: str, number: int, tail: int = BLOCK + 1) -> DecodeJob:
    return job(name, [*HEAD, *(200 + 5 * number + at for at in range(tail))], prefill=None)


def computed(steps: list[do.RunStep]) -> int:
    """Prompt tokens of all steps."""
    return sum(len(item.tokens) for step in steps for item in step.items if len(item.tokens) > 1)


def play(rig: Rig, limit: int = 3000) -> list[do.RunStep]:
    """Everything that is left, and its steps."""
    steps: list[do.RunStep] = []
    for _ in range(limit):
        if not rig.work:
            return steps
        action = rig.work.pop(0)
        if isinstance(action, do.RunStep):
            steps.append(action)
        rig.happen(action)
    raise AssertionError("work never ends")


def test_a_burst_of_siblings_computes_its_head_once() -> None:
    rig = Rig(pages=256, limits=rules(step_tokens=512, alone_tokens=512, costs=COSTS))
    jobs = [sibling(f"r{n}", n) for n in range(5)]
    for one in jobs:
        assert isinstance(rig.submit(one), Accepted)
    steps = play(rig)
    assert computed(steps) == len(HEAD) + 5 * (BLOCK + 1)
    for one in jobs:
        rig.finished(one)
    assert [rig.logs[one.request].cached_tokens for one in jobs] == [0, *[len(HEAD)] * 4]
    rig.at_rest()


def test_siblings_that_are_let_in_while_the_head_is_computed_share_it_chunk_by_chunk() -> None:
    rig = Rig(pages=256, limits=rules(step_tokens=16, alone_tokens=16, costs=COSTS))
    jobs = [sibling(f"r{n}", n) for n in range(4)]
    for one in jobs:
        rig.submit(one)
        rig.happen(rig.work.pop(0))
    steps = play(rig)
    assert computed(steps) <= len(HEAD) + 4 * (BLOCK + 1)
    for one in jobs:
        rig.finished(one)


def test_a_slow_step_is_not_waited_for() -> None:
    slow = replace(COSTS, step_s=10.0)
    rig = Rig(pages=256, limits=rules(step_tokens=512, alone_tokens=512, costs=slow))
    rig.submit(job("busy", 9, prefill=None))
    for n in range(2):
        rig.submit(sibling(f"r{n}", n))
    play(rig)
    assert rig.logs[RequestId("r1")].cached_tokens == 0


def test_what_is_cached_is_a_head_start_of_a_second_at_most() -> None:
    rig = Rig(pages=512, limits=rules(step_tokens=8, alone_tokens=8, costs=COSTS))
    rig.submit(sibling("warm", 0))
    play(rig)
    rig.submit(job("busy", 24, prefill=None))
    rig.submit(job("cold", [9] * 24, prefill=None))
    rig.now += 0.5
    rig.submit(sibling("hot", 1))
    rig.now += 1.0
    rig.submit(sibling("late", 2))
    play(rig)
    order = [e.request for chunk in rig.chunks for e in chunk.entries if e.index == 0]
    assert order.index(RequestId("hot")) < order.index(RequestId("cold"))
    assert order.index(RequestId("cold")) < order.index(RequestId("late"))


@settings(max_examples=40, deadline=None)
@given(
    gone=st.integers(0, 3),
    when=st.integers(0, 25),
    budget=st.sampled_from((8, 16, 64, 512)),
    pages=st.sampled_from((48, 256)),
    step_s=st.sampled_from((0.0, 0.02)),
    fails=st.booleans(),
)
def test_a_mate_that_goes_away_strands_nobody(
    gone: int, when: int, budget: int, pages: int, step_s: float, fails: bool
) -> None:
    """Cancelled at any moment, or the step that it is in fails."""
    costs = replace(COSTS, step_s=step_s)
    limits = rules(step_tokens=budget, alone_tokens=budget, costs=costs)
    rig = Rig(pages=pages, limits=limits)
    jobs = [sibling(f"r{n}", n) for n in range(4)]
    for one in jobs:
        rig.asked(one)
    for _ in range(when):
        if rig.work:
            rig.happen(rig.work.pop(0))
    if fails:
        for at, action in enumerate(rig.work):
            if isinstance(action, do.RunStep) and len(action.items) > 1:
                rig.work.pop(at)
                rig.send(on.StepFailed(action.step, "broken"))
                break
    else:
        rig.cancel(f"r{gone}")
    play(rig)
    rig.tick(0.1)
    play(rig)
    for number, one in enumerate(jobs):
        if number != gone or fails:
            rig.finished(one)
    rig.at_rest()
