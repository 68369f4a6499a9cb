"""Prompts take what running sequences can spare: gaps, means, tiles, and prompts that get on."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from services.decode.core import actions as do
from services.decode.core.pacing import Pace
from services.decode.core.slack import EVERY, TILE
from shared.costs import WorkCosts, mixed_s

from .rig import Rig, job, rules

TARGET_S = 0.1
COSTS = WorkCosts(0.01, 0.0005, 1e-8, 0.02, 0.002)
PROMPT = 900
LARGE = 2_048


@dataclass
class Timed:
    """A worker whose steps take what the costs say, `factor` times."""

    policy: str = "gap"
    factor: float = 1.0
    costs: WorkCosts = COSTS
    target_s: float = TARGET_S
    gaps: list[float] = field(default_factory=list)
    """Between tokens of the first sequence."""
    chunks: list[int] = field(default_factory=list)
    """Prompt tokens of each step beside it."""

    def __post_init__(self) -> None:
        limits = rules(
            step_policy=self.policy,
            tpot_target_s=self.target_s,
            costs=self.costs,
            step_tokens=LARGE,
            alone_tokens=LARGE,
        )
        self.rig = Rig(pages=1_024, limits=limits)
        self.rig.submit(job("runs", tokens=3, max_tokens=400, prefill=None))
        self.steps(4)
        self.gaps.clear(), self.chunks.clear()

    def steps(self, count: int) -> None:
        for _ in range(count):
            step = self.rig.take(do.RunStep)
            assert isinstance(step, do.RunStep)
            fills = [item for item in step.items if len(item.tokens) > 1]
            new, old = sum(len(item.tokens) for item in fills), fills[0].start if fills else 0
            taken_s = self.factor * mixed_s(self.costs, new, old, len(step.items) - len(fills))
            self.rig.now += taken_s
            self.gaps.append(taken_s)
            self.chunks.append(new)
            self.rig.happen(step)

    def prompt(self, name: str = "long", length: int = PROMPT) -> None:
        tokens = [ord(name[0])] * length
        self.rig.submit(job(name, tokens=tokens, max_tokens=2, prefill=None))


def test_a_prompt_comes_in_whole_tiles_and_no_gap_is_beyond_the_target() -> None:
    timed = Timed()
    timed.prompt()
    timed.steps(12)
    assert sum(timed.chunks) == PROMPT
    full = [new for new in timed.chunks if new][:-1]
    # A step on a tile's border has one running token: the prompt's part ends on a block's.
    assert all((new + 1) % TILE in (0, TILE - 3) for new in full), full
    assert max(timed.gaps) <= TARGET_S
    assert min(timed.gaps[1 : len(full) + 1]) > TARGET_S / 2, "and what can be spared is used"


def test_one_fixed_number_is_as_good_as_the_guess() -> None:
    timed = Timed("fixed")
    timed.prompt()
    timed.steps(2)
    assert timed.chunks[1] == PROMPT and max(timed.gaps) > 4 * TARGET_S


def test_a_longer_past_leaves_a_smaller_chunk() -> None:
    timed = Timed(costs=WorkCosts(0.01, 0.0003, 3e-7, 0.02, 0.002))
    timed.prompt()
    timed.steps(12)
    chunks = [new for new in timed.chunks if new]
    assert chunks[0] > chunks[-2] and max(timed.gaps) <= TARGET_S


def test_who_is_ahead_in_the_mean_lends_up_to_two_targets() -> None:
    timed = Timed("mean")
    timed.steps(20)
    timed.prompt()
    timed.steps(3)
    assert TARGET_S < max(timed.gaps) <= 2 * TARGET_S
    pace = Pace(0.0, 0.0)
    for number in range(1, 50):
        pace = Pace.after(pace, number * TARGET_S)
    assert pace.due_s(TARGET_S, mean=True) == pytest.approx(50 * TARGET_S)


def test_prompts_get_on_where_nobody_can_spare_anything() -> None:
    timed = Timed(target_s=0.001)
    timed.prompt(length=3 * TILE)
    timed.steps(3 * EVERY + 2)
    assert sum(timed.chunks) == 3 * TILE
    begun = [at for at, new in enumerate(timed.chunks) if new]
    assert all(later - earlier == EVERY for earlier, later in pairwise(begun))


def test_costs_that_are_off_are_learnt() -> None:
    timed = Timed(factor=2.0)
    for name in ("a", "b", "c", "d"):
        timed.prompt(name)
    timed.steps(40)
    assert timed.gaps[1] > TARGET_S, "it cannot know"
    late = timed.gaps[-12:]
    assert max(late) <= TARGET_S and sum(timed.chunks[-12:]) > 0


def test_a_sequence_that_had_to_wait_is_not_behind() -> None:
    timed = Timed()
    (running,) = timed.rig.machine.desk.sequences.values()
    assert running.pace is not None and running.pace.further > 0
    running.stalled(timed.rig.now, "gave way")
    assert running.pace is None
    timed.steps(1)
    assert running.pace == Pace(timed.rig.now, timed.rig.now)
