"""The planner over the core: what it advises, orders, and does about what goes wrong."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest

from services.scheduler import views
from services.scheduler.core.events import LeadLost, LeadTaken, SwitchAnswered
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire.requests import PlacementEnded
from tests.services.scheduler.balance.town import ANSWERS, PROMPTS, SETTINGS, Town

RATE = {PROMPTS: 2.5, ANSWERS: 2.4}


def test_a_load_of_answers_turns_one_prefill_worker() -> None:
    town = Town()
    town.run(60, RATE[ANSWERS], ANSWERS)
    assert town.roles() == ["decode"] * 3 + ["prefill"]
    assert [flip.reason.split(" after")[0] for flip in town.flips] == ["done"]
    assert town.refused == 0
    ordered = next(p for p in town.planned if p.event == "planner.flip_ordered")
    assert "target 90%" in ordered.reason and "3 decode" in ordered.reason
    town.run(240, RATE[ANSWERS], ANSWERS)
    assert len(town.flips) == 1, "one was enough"


def test_a_load_of_prompts_turns_one_decode_worker() -> None:
    town = Town()
    town.run(60, RATE[PROMPTS], PROMPTS)
    assert town.roles() == ["decode"] + ["prefill"] * 3


def test_a_phase_shift_is_followed_and_each_role_keeps_a_worker() -> None:
    town = Town()
    for shape in (PROMPTS, ANSWERS, PROMPTS):
        town.run(120, RATE[shape], shape)
        assert set(town.roles()) == {"prefill", "decode"}
    assert 2 <= len(town.flips) <= 6
    assert town.refused == 0


def test_advice_orders_nothing() -> None:
    town = Town(dataclasses.replace(SETTINGS, mode="advise"))
    town.run(120, RATE[ANSWERS], ANSWERS)
    assert not town.orders
    assert [p.event for p in town.planned] == ["planner.proposed"], "said once, not every tick"
    shown = views.view(town.core, "balance")
    assert isinstance(shown, dict)
    proposal = shown["models"]["model"]["proposal"]
    assert proposal["workers"] == {"prefill": 1, "decode": 3}
    assert "answer tokens" in proposal["reason"]
    assert shown["models"]["model"]["wanted"]["decode"] > 2


def test_off_looks_at_nothing() -> None:
    town = Town(dataclasses.replace(SETTINGS, mode="off"))
    town.run(60, RATE[ANSWERS], ANSWERS)
    assert not town.planned and not town.core.balance.looks


def test_a_load_that_is_served_well_changes_nothing() -> None:
    town = Town()
    town.run(400, 0.3, PROMPTS)
    town.run(400, 0.3, ANSWERS)
    assert not town.planned


def test_no_traffic_changes_nothing() -> None:
    town = Town()
    town.run(200)
    town.run(60, RATE[ANSWERS], ANSWERS)
    town.run(400)
    assert len(town.flips) == 1


def test_a_load_that_flaps_faster_than_the_window_hardly_moves_anyone() -> None:
    town = Town()
    for _ in range(30):
        town.run(5, RATE[PROMPTS], PROMPTS)
        town.run(5, RATE[ANSWERS], ANSWERS)
    limit = 300 / SETTINGS.cooldown_s / 3
    assert len(town.flips) <= limit, [flip.reason for flip in town.flips]


def test_between_two_changes_there_is_a_pause() -> None:
    town, ends = Town(), list[float]()
    for second in range(300):
        shape = ANSWERS if second // 60 % 2 else PROMPTS
        town.run(1, RATE[shape], shape)
        ends += [town.now] * (len(town.flips) - len(ends))
    assert len(ends) >= 2
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    assert min(gaps) >= SETTINGS.cooldown_s


def test_the_last_worker_of_a_role_stays() -> None:
    town = Town(prefill=1, decode=1)
    town.run(100, RATE[ANSWERS], ANSWERS)
    town.run(100, RATE[PROMPTS], PROMPTS)
    assert not town.orders


def test_the_last_prefill_worker_may_go_where_colocated_serves_better() -> None:
    town = Town(dataclasses.replace(SETTINGS, may_colocate=True), prefill=1, decode=1)
    town.run(100, 1.6, (20, 200))
    assert town.roles() == ["decode", "decode"]
    assert "2 colocated" in town.planned[0].reason


def test_who_insists_on_a_handoff_keeps_the_last_prefill_worker() -> None:
    town = Town(dataclasses.replace(SETTINGS, may_colocate=True), prefill=1, decode=1)
    town.run(5, 1.6, (20, 200))
    for asked in town.core.balance._demand._asked.values():
        asked.needs_prefill = True
    town.run(10, 1.6, (20, 200))
    assert not town.orders


def test_a_worker_that_cannot_change_is_not_ordered_to() -> None:
    town = Town()
    for hand in town.hands:
        hand.switchable = False
    town.run(60, RATE[ANSWERS], ANSWERS)
    assert not town.orders
    assert {p.event for p in town.planned} == {"planner.proposed"}


def test_a_refused_order_is_over_and_tried_again_only_after_the_pause() -> None:
    town = Town()
    for hand in town.hands:
        hand.obeys = lambda: "no"
    town.run(200, RATE[ANSWERS], ANSWERS)
    assert {flip.reason.split(" after")[0] for flip in town.flips} == {"refused: no"}
    pauses = 200 / SETTINGS.cooldown_s
    assert 1 <= len(town.flips) <= math.log2(pauses) + 1, "each failure doubles the pause"
    assert town.roles() == ["decode"] * 2 + ["prefill"] * 2


def test_an_order_without_an_answer_is_repeated_then_withdrawn() -> None:
    town = Town()
    for hand in town.hands:
        hand.obeys = lambda: "?"
    town.run(40, RATE[ANSWERS], ANSWERS)
    assert len({o.order.worker for o in town.orders}) == 1
    assert len(town.orders) > 5
    assert town.flips[0].reason.startswith("it did not answer")


def test_an_order_that_was_obeyed_in_silence_goes_on() -> None:
    """The answer got lost: heartbeats say what became of the order."""
    town = Town()
    for hand in town.hands:
        hand.obeys = lambda: "?"
    while not town.orders:
        town.run(1, RATE[ANSWERS], ANSWERS)
    hand = town.hand(town.orders[0].order.worker)
    hand.state, hand.turning, hand.back_s = "draining", "decode", town.now + 1
    town.run(20, RATE[ANSWERS], ANSWERS)
    assert town.flips[0].reason.startswith("done")


@pytest.mark.parametrize("returns", [True, False])
def test_a_worker_that_dies_while_it_changes(returns: bool) -> None:
    """Its supervisor starts it in its old role, or nobody does."""
    town = Town(dataclasses.replace(SETTINGS, flip_limit_s=30.0), prefill=3)
    while not any(hand.turning for hand in town.hands):
        town.run(1, RATE[ANSWERS], ANSWERS)
    hand = next(hand for hand in town.hands if hand.turning)
    hand.alive, hand.turning = False, ""
    hand.back_s = town.now + 5 if returns else 0.0
    town.run(35, RATE[ANSWERS], ANSWERS)
    expected = "it started again in its old role" if returns else "it did not come back in time"
    assert town.flips[0].reason.startswith(expected)
    assert town.core.balance.flips.counts["decode", "failed"] == 1
    assert town.core.balance.flips.cool_until_s > town.now - 35 + SETTINGS.cooldown_s


def test_the_order_is_withdrawn_when_its_worker_becomes_the_last_of_its_role() -> None:
    town = Town()
    for hand in town.hands:
        hand.obeys = lambda: "?"
    while not town.orders:
        town.run(1, RATE[ANSWERS], ANSWERS)
    ordered = town.orders[0].order.worker
    other = next(h for h in town.hands if h.role == "prefill" and h.name != ordered)
    other.state = "draining"
    town.run(1, RATE[ANSWERS], ANSWERS)
    assert town.flips[0].reason.startswith("it is the last prefill worker")


def test_a_new_leader_finds_the_change_under_way() -> None:
    town = Town()
    town.hand("w0").drains_s = 6.0
    town.hand("w1").drains_s = 6.0
    while not any(hand.turning for hand in town.hands):
        town.run(1, RATE[ANSWERS], ANSWERS)
    town.leader_epoch = 2
    town.core = town.new_core()
    town.run(2, RATE[ANSWERS], ANSWERS)
    current = town.core.balance.flips.current
    assert current is not None and (current.stage, current.to) == ("draining", "decode")
    town.run(15, RATE[ANSWERS], ANSWERS)
    assert town.flips[-1].reason.startswith("done")
    assert town.roles() == ["decode"] * 3 + ["prefill"]


def test_a_leader_that_comes_after_the_worker_was_gone_waits_before_it_changes_anything() -> None:
    town = Town()
    while not any(hand.turning for hand in town.hands):
        town.run(1, RATE[ANSWERS], ANSWERS)
    while not any(not hand.alive for hand in town.hands):
        town.run(0.25, RATE[ANSWERS], ANSWERS)
    orders = len(town.orders)
    town.leader_epoch = 2
    town.core = town.new_core()
    town.feed(LeadTaken(Epoch(2)))
    town.run(SETTINGS.cooldown_s - 1, RATE[ANSWERS], ANSWERS)
    assert len(town.orders) == orders
    assert town.roles() == ["decode"] * 3 + ["prefill"]


def test_a_follower_orders_nothing() -> None:
    town = Town()
    town.run(8, RATE[ANSWERS], ANSWERS)
    town.feed(LeadLost())
    town.run(60)
    assert not town.orders


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_figures_that_make_no_sense_change_nothing(value: float) -> None:
    town = Town()
    town.run(8, 0.5, PROMPTS)
    beat = town.hands[0].beat()
    load = dataclasses.replace(beat.load, work_left_s=value, pages_total=-5)
    cost = dataclasses.replace(beat.cost, step_s=value, token_s=value, decode_step_s=value)
    town.hands[0].sequence += 1
    town.feed(dataclasses.replace(beat, load=load, cost=cost, sequence=beat.sequence + 1))
    for number in range(1, 5):
        ended = PlacementEnded(
            RequestId(f"r{number}"),
            Attempt(1),
            "finished",
            emitted=10,
            ttft_s=value,
            tpot_s=value,
        )
        town.feed(ended)
    town.run(4, 0.5, PROMPTS)
    look = town.core.balance.looks["model"]
    assert math.isfinite(look.now.goodput) and not look.proposal
    assert not town.orders


def test_an_answer_about_a_change_that_is_not_there_is_ignored() -> None:
    town = Town()
    town.run(2)
    town.feed(SwitchAnswered(WorkerId("w0"), Epoch(1), "no"))
    town.feed(SwitchAnswered(WorkerId("nobody"), Epoch(9), ""))
    assert town.core.balance.flips.current is None and not town.planned


def test_from_a_split_that_keeps_nothing_the_way_back_is_found_step_by_step() -> None:
    """With one decode worker, two would not do either: the step is made all the same."""
    town = Town(prefill=3, decode=1)
    town.run(150, RATE[ANSWERS], ANSWERS)
    assert town.roles() == ["decode"] * 3 + ["prefill"]
