"""Turns of waiting jobs: in proportion to what is cached, and a bound for everyone."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from services.prefill.core.actions import RunStep
from services.prefill.core.turns import (
    GROUPS,
    QUANTUM_TOKENS,
    Turns,
    aged_bound_tokens,
    group_of,
    start_bound_tokens,
)
from shared.ids import RequestId
from shared.wire.requests import Accepted
from shared.wire.workers import CostModel
from tests.services.prefill.rig import BLOCK, Rig, expected_token, job, limits


@dataclass
class Waiter:
    name: int
    group: int
    tokens: int = QUANTUM_TOKENS
    pressing: bool = False


def test_sixty_three_of_a_hundred_cached_is_group_six() -> None:
    assert group_of(63, 100, 0.0, 0.1, 0) == 6
    assert group_of(0, 100, 0.0, 0.1, 0) == 0
    assert group_of(96, 100, 0.0, 0.1, 0) == 9
    assert group_of(100, 100, 0.0, 0.1, 0) == 9


def test_waiting_and_priority_lift_a_job_and_never_drop_it_out() -> None:
    assert [group_of(0, 100, waited, 0.1, 0) for waited in (0.05, 0.31, 5.0)] == [0, 3, 9]
    assert group_of(50, 100, 0.0, 0.1, 100) == 9
    assert group_of(50, 100, 0.0, 0.1, -50) == 3
    assert group_of(0, 100, 0.0, 0.1, -100) == 0


def test_a_round_gives_each_group_its_share() -> None:
    """55 slots of a quantum: ten of the top group, nine of the next, …, one of the cold."""
    waiting = [Waiter(n, n % GROUPS) for n in range(1000)]
    turns, taken = Turns(), Counter[int]()
    for waiter in turns.in_turn(waiting):
        turns.charge(waiter, waiter.tokens)
        taken[waiter.group] += 1
        if taken.total() == 55:
            break
    assert taken == {group: group + 1 for group in range(GROUPS)}


def test_within_a_group_the_first_come_goes_first_and_the_pressing_before_all() -> None:
    waiting = [Waiter(0, 3), Waiter(1, 3), Waiter(2, 0, pressing=True), Waiter(3, 9)]
    turns = Turns()
    order = []
    for waiter in turns.in_turn(waiting):
        turns.charge(waiter, waiter.tokens)
        order.append(waiter.name)
    assert order == [2, 3, 0, 1]


def test_who_takes_nothing_is_not_charged_and_everyone_is_seen_once() -> None:
    waiting = [Waiter(n, n % 4) for n in range(40)]
    assert sorted(w.name for w in Turns().in_turn(waiting)) == list(range(40))


@settings(max_examples=60, deadline=None)
@given(
    older=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4000)), max_size=12),
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=20),
    ages=st.integers(0, 3),
    seed=st.integers(0, 999),
)
def test_nobody_waits_longer_than_the_bound_says(
    older: list[tuple[int, int]], sizes: list[int], ages: int, seed: int
) -> None:
    """A cold job against an endless stream of cached ones, groups changing all the time."""
    chance = random.Random(seed)
    waiting = [Waiter(n, group, tokens) for n, (group, tokens) in enumerate(older)]
    cold = Waiter(len(waiting), 0, 100)
    waiting.append(cold)
    longest, turns, begun = max([100, *sizes, *(t for _, t in older)]), Turns(), 0
    limit = start_bound_tokens(len(older), longest)
    while cold in waiting:
        waiting += [Waiter(-1, 9, chance.choice(sizes)) for _ in range(3)]
        for waiter in waiting:
            if waiter is not cold and waiter.name >= 0:
                waiter.group = chance.randrange(GROUPS)
        if ages and chance.random() < 0.01 * ages:
            cold.group = min(9, cold.group + 1)
        taken = next(turns.in_turn(waiting))
        turns.charge(taken, taken.tokens)
        waiting.remove(taken)
        begun += taken.tokens
        assert begun <= limit + 100, (len(older), longest)
        if len(waiting) > 40:
            waiting = [w for w in waiting if w.name >= 0 or w is cold] + waiting[-8:]


@settings(max_examples=60, deadline=None)
@given(
    older=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4000)), max_size=12),
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=20),
    begun_before=st.integers(0, 60),
    seed=st.integers(0, 999),
)
def test_who_has_waited_long_enough_starts_within_a_tenth_of_that(
    older: list[tuple[int, int]], sizes: list[int], begun_before: int, seed: int
) -> None:
    """In the highest group, whatever credits are left, against endless jobs in all groups."""
    chance, turns = random.Random(seed), Turns()
    waiting = [Waiter(-2, chance.randrange(GROUPS), chance.choice(sizes)) for _ in range(80)]
    for waiter in turns.in_turn(waiting):
        if begun_before == 0:
            break
        turns.charge(waiter, waiter.tokens)
        begun_before -= 1
    waiting = [Waiter(n, group, tokens) for n, (group, tokens) in enumerate(older)]
    aged = Waiter(len(waiting), GROUPS - 1, 100)
    waiting.append(aged)
    before, longest = sum(t for _, t in older), max([100, *sizes, *(t for _, t in older)])
    limit, begun = aged_bound_tokens(before, longest), 0
    while aged in waiting:
        for group in range(GROUPS):
            if sum(waiter.group == group for waiter in waiting) < 3:
                waiting.append(Waiter(-1, group, chance.choice(sizes)))
        taken = next(turns.in_turn(waiting))
        turns.charge(taken, taken.tokens)
        waiting.remove(taken)
        begun += taken.tokens if taken is not aged else 0
        assert begun <= limit
    assert limit <= 5.5 * before + 13.5 * longest + 90 * QUANTUM_TOKENS


# -- in the machine ---------------------------------------------------------------------------

HEAD = tuple(range(100, 132))
"""Eight blocks."""


def warmed(**changes: object) -> Rig:
    """A worker that has HEAD cached and one long job on the engine."""
    rig = Rig(pages=200, limits=limits(chunk_tokens=16, **changes))
    rig.start(job("warm", (*HEAD, 1)))
    rig.settle()
    rig.release("warm")
    rig.start(job("busy", tuple(range(200, 264))))
    return rig


def begun(rig: Rig) -> list[str]:
    """Requests in the order of their first tokens."""
    return [str(entry.request) for entry in rig.emitted()]


def test_a_cached_job_goes_before_cold_ones_and_a_cold_one_is_not_forgotten() -> None:
    rig = warmed()
    for number in range(3):
        rig.start(job(f"cold{number}", [300 + 40 * number + i for i in range(40)]))
    for number in range(3):
        rig.start(job(f"hot{number}", (*HEAD, 400 + number)))
    rig.settle()
    order = [name for name in begun(rig) if name not in ("warm", "busy")]
    assert order[:3] == ["hot0", "hot1", "hot2"]
    assert sorted(order[3:]) == ["cold0", "cold1", "cold2"]


def test_first_come_first_served_stays_a_choice() -> None:
    rig = warmed(groups=False)
    rig.start(job("cold", range(300, 340)))
    rig.start(job("hot", (*HEAD, 400)))
    rig.settle()
    assert begun(rig)[-2:] == ["cold", "hot"]


def test_a_job_that_has_waited_long_goes_before_younger_cached_ones() -> None:
    rig = warmed(age_s=0.1)
    rig.start(job("cold", range(300, 340)))
    rig.tick(2.0)
    rig.start(job("hot", (*HEAD, 400)))
    rig.settle()
    assert begun(rig)[-2:] == ["cold", "hot"]


def test_siblings_share_every_level_of_a_tree() -> None:
    """Trunk, branches, leaves: each level is computed once, whoever comes first."""
    cost = CostModel(0.0, 0.001, 0.0, 0.0, 0.0)
    rig = Rig(pages=200, limits=limits(chunk_tokens=512, cost=cost))
    trunk = tuple(range(100, 100 + 4 * BLOCK))
    prompts = {}
    for branch in range(2):
        bough = tuple(range(200 + 50 * branch, 200 + 50 * branch + 4 * BLOCK))
        for leaf in range(3):
            tail = tuple(300 + 10 * (3 * branch + leaf) + i for i in range(BLOCK + 1))
            prompts[f"b{branch}l{leaf}"] = (*trunk, *bough, *tail)
    for name, tokens in prompts.items():
        rig.start(job(name, tokens))
    rig.settle()
    computed = sum(len(item.tokens) for step in rig.seen(RunStep) for item in step.items)
    assert computed == (4 + 2 * 4) * BLOCK + 6 * (BLOCK + 1)
    for name, entry in rig.first_tokens().items():
        assert entry.token_ids == (expected_token(prompts[name]),)


def test_waiting_for_a_mate_is_not_worth_a_slow_step() -> None:
    """The fixed part of one more step would cost more than the four tokens save."""
    cost = CostModel(1.0, 0.001, 0.0, 0.0, 0.0)
    rig = Rig(pages=200, limits=limits(chunk_tokens=512, cost=cost))
    rig.start(job("busy", (1,)))
    for name in ("a", "b"):
        rig.start(job(name, (*range(100, 104), ord(name), 1)))
    rig.settle()
    assert len(rig.seen(RunStep)) == 2


@settings(max_examples=30, deadline=None)
@given(
    cancelled=st.integers(0, 3),
    when=st.integers(0, 12),
    chunk=st.integers(BLOCK, 40),
    step_s=st.sampled_from((0.0, 0.01)),
    fails=st.booleans(),
)
def test_a_mate_that_goes_away_strands_nobody(
    cancelled: int, when: int, chunk: int, step_s: float, fails: bool
) -> None:
    """Four siblings; one is cancelled, or breaks the engine, at any moment."""
    cost = CostModel(step_s, 0.001, 0.0, 0.0, 0.0)
    rig = Rig(pages=200, limits=limits(chunk_tokens=chunk, cost=cost))
    prompts = {f"r{n}": (*range(100, 130), 200 + n, *range(50 + n, 60)) for n in range(4)}
    gone = f"r{cancelled}"
    if fails:
        rig.poison = 200 + cancelled
    for name, tokens in prompts.items():
        assert isinstance(rig.start(job(name, tokens)), Accepted)
    for _ in range(when):
        if rig.engine_work:
            rig.turn_engine()
    if not fails:
        rig.cancel(gone)
    rig.settle()
    for name in set(prompts) - {gone}:
        entry = rig.first_tokens()[RequestId(name)]
        assert entry.token_ids == (expected_token(prompts[name]),)
        rig.release(name)
    if gone in rig.first_tokens():
        rig.release(gone)
    assert rig.held == 0
