"""Order by priority with ageing, stall-free steps, and who gives way to whom."""

from __future__ import annotations

import itertools

from services.decode.core import actions as do
from services.decode.core.batching import Budget, plan
from services.decode.core.sequences import Sequence, Stage
from shared.costs import WorkCosts
from shared.wire.requests import Accepted

from .rig import Rig, job, refused, rules

COSTS = WorkCosts(0.01, 0.001, 0.0, 0.02, 0.001)


def ready(rig: Rig) -> list[Sequence]:
    return [sequence for sequence in rig.machine.desk.ranked() if sequence.batchable]


def step(rig: Rig) -> do.RunStep:
    """Everything up to the next step, and that step."""
    while not isinstance(rig.work[0], do.RunStep):
        rig.happen(rig.work.pop(0))
    found = rig.work.pop(0)
    assert isinstance(found, do.RunStep)
    return found


def test_the_budget_leaves_room_for_prompts_whoever_decodes() -> None:
    budget = Budget(step_tokens=32, alone_tokens=256, block_tokens=4)
    assert [budget.left(decoding) for decoding in (0, 1, 20, 32, 500)] == [256, 31, 12, 4, 4]


def test_decodes_come_first_then_begun_prompts_then_new_ones() -> None:
    rig = Rig(pages=256, limits=rules(step_tokens=24, alone_tokens=16))
    rig.submit(job("decodes", tokens=3, prefill=None, max_tokens=40))
    rig.happen(step(rig))
    rig.submit(job("long", tokens=[1] * 60, prefill=None))
    rig.happen(step(rig))
    rig.submit(job("short", tokens=[2] * 6, prefill=None))
    rig.happen(step(rig))
    sizes = [(len(item.tokens), item.tokens[0]) for item in step(rig).items]
    assert sizes[0][0] == 1 and sizes[1][1] == 1, "the running one, then the one begun"
    assert sum(size for size, _ in sizes) <= 24


def test_a_prompt_that_does_not_fit_does_not_hold_up_a_shorter_one() -> None:
    rig = Rig(pages=256, limits=rules(step_tokens=10, alone_tokens=10))
    for name, length in (("a", 7), ("b", 9), ("c", 3)):
        rig.submit(job(name, tokens=[ord(name)] * length, prefill=None))
    rig.happen(step(rig))
    shares = plan(ready(rig), Budget(10, 10, 4), COSTS)
    assert [share.sequence.job.request for share in shares] == ["a", "b"]
    shares = plan(ready(rig)[1:], Budget(10, 3, 4), COSTS)
    assert [share.sequence.job.request for share in shares] == ["b"]


def test_higher_priority_begins_first_and_ageing_bounds_the_wait() -> None:
    """One point is worth 0.1 s: whoever comes 20 s later never goes first."""
    rig = Rig(pages=256, limits=rules(step_tokens=4, alone_tokens=4))
    rig.submit(job("busy", tokens=[9] * 4, max_tokens=60, prefill=None))
    rig.submit(job("low", tokens=[1] * 20, prefill=None, priority=-100))
    rig.submit(job("high", tokens=[2] * 20, prefill=None, priority=100))
    assert [s.job.request for s in rig.machine.desk.ranked()] == ["high", "busy", "low"]
    rig.now += 20.1
    rig.submit(job("later", tokens=[3] * 20, prefill=None, priority=100))
    assert [s.job.request for s in rig.machine.desk.ranked()][2:] == ["low", "later"]
    rig.run()


def test_a_low_job_is_served_while_high_ones_keep_coming() -> None:
    rig = Rig(pages=40, limits=rules(step_tokens=8, alone_tokens=8, max_sequences=2))
    low = job("low", tokens=[1] * 20, prefill=None, priority=-50, max_tokens=4)
    rig.limits = rig.limits
    rig.submit(low)
    for number in itertools.count():
        if rig.logs[low.request].finish is not None:
            break
        assert number < 400, rig.machine.story(low.request)
        rig.submit(job(f"high-{number}", tokens=[2] * 20, prefill=None, max_tokens=2, priority=50))
        for _ in range(3):
            if rig.work:
                rig.happen(rig.work.pop(0))
        rig.tick(0.1)
    rig.finished(low)


def test_a_priority_out_of_range_is_refused() -> None:
    assert refused(Rig().submit(job(priority=101))) == "invalid_parameter"
    assert isinstance(Rig().submit(job(priority=-100)), Accepted)


def test_the_lowest_priority_gives_way_first_then_the_cheapest_to_compute_again() -> None:
    rig = Rig(pages=64, limits=rules(costs=COSTS, forecast=False, step_tokens=128))
    jobs = [
        job("needy", tokens=[1] * 20, max_tokens=99, prefill=None, priority=50),
        job("high", tokens=[2] * 8, max_tokens=30, prefill=None, priority=9),
        job("low-long", tokens=[3] * 40, max_tokens=30, prefill=None),
        job("low-short", tokens=[4] * 8, max_tokens=30, prefill=None),
    ]
    for one in jobs:
        rig.submit(one)
    for _ in range(2):
        rig.happen(step(rig))
    rig.take(do.RunStep)
    desk, machine = rig.machine.desk, rig.machine
    order = []
    while True:
        before = {s.job.request for s in desk.sequences.values() if s.stage is Stage.PARKED}
        if not machine.preemption.give_way(desk.sequences[jobs[0].request], rig.now):
            break
        after = {s.job.request for s in desk.sequences.values() if s.stage is Stage.PARKED}
        order.extend(after - before)
    assert order == ["low-long", "low-short", "high"], "a page of the long one costs less"


def test_a_newcomer_pushes_out_only_lower_priorities_and_only_if_that_is_enough() -> None:
    for priority, wins in ((0, False), (1, True)):
        rig = Rig(pages=20, limits=rules(reserve_wait_s=5.0))
        running = job("r0", tokens=[1] * 30, max_tokens=30, prefill=None)
        rig.submit(running)
        for _ in range(3):
            rig.happen(step(rig))
        newcomer = job("r1", tokens=[2] * 20, max_tokens=40, prefill=None, priority=priority)
        reply = rig.asked(newcomer)
        rig.happen(step(rig))
        assert isinstance(rig.replies.get(reply), Accepted) is wins
        rig.run()
        rig.finished(running)
        rig.finished(newcomer)
        assert rig.machine.counts["preemptions"] == (1 if wins else 0)
        rig.at_rest()


def test_small_jobs_pass_one_that_is_short_of_pages_only_so_often() -> None:
    rig = Rig(pages=40, limits=rules(reserve_wait_s=1e9, queue_limit=64, max_sequences=40))
    rig.submit(job("runs", tokens=[1] * 40, max_tokens=40, prefill=None))
    rig.happen(step(rig))
    big = rig.asked(job("big", tokens=[2] * 90, max_tokens=2, prefill=None))
    small = [rig.asked(job(f"s{n}", tokens=[3, n], max_tokens=1, prefill=None)) for n in range(12)]
    for _ in range(200):
        if big in rig.replies or not rig.work:
            break
        rig.happen(rig.work.pop(0))
        passed = sum(1 for reply in small if reply in rig.replies)
        assert big in rig.replies or passed <= 8
    rig.run()
    assert big in rig.replies and all(reply in rig.replies for reply in small)
