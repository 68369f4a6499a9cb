"""What is learnt comes near the truth, and nothing that comes in can spoil it."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.models.learned import SHIPPED, Learned, decode_parts, prefill_parts
from services.scheduler.core.models.lengths import Lengths, Survival
from services.scheduler.core.models.links import SHIPPED as LINK
from services.scheduler.core.models.links import Links
from services.scheduler.core.models.regression import Drift, FactorFit
from services.scheduler.core.trust import Trust
from shared import costs
from shared.costs import WorkCosts
from shared.ids import WorkerId
from shared.wire.workers import CostModel, Heartbeat, LinkSample, StepSample
from tests.services.scheduler.builders import beat

PROFILE = CostModel(0.01, 1e-4, 1e-8, 0.02, 5e-4)
W, V, X = WorkerId("prefill-0"), WorkerId("decode-0"), WorkerId("decode-1")
NAN, INF = math.nan, math.inf


def with_steps(*steps: StepSample, cost: CostModel = PROFILE) -> Heartbeat:
    return dataclasses.replace(beat("prefill-0"), cost=cost, steps=steps)


def prefill(n: int, p: int, seconds: float) -> StepSample:
    return StepSample(n, p, 0, 0, seconds)


def test_prefill_time_is_learnt_within_a_few_percent() -> None:
    truth = WorkCosts(0.012, 1.3e-4, 0.8e-8, 0.02, 5e-4)
    chance, learned = random.Random(1), Learned()
    for _ in range(600):
        n, p = chance.randrange(16, 4096), chance.randrange(0, 8192)
        seconds = costs.prefill_s(truth, n, p) * chance.gauss(1.0, 0.05)
        learned.heard(with_steps(prefill(n, p, seconds)), 0.0)
    found = learned.costs(with_steps())
    for n, p in ((64, 0), (512, 512), (2048, 4096), (4096, 0)):
        expected = costs.prefill_s(truth, n, p)
        assert costs.prefill_s(found, n, p) == pytest.approx(expected, rel=0.06)


def test_outliers_do_not_move_it_and_factors_stay_within_half() -> None:
    chance, learned = random.Random(2), Learned()
    for number in range(400):
        n = chance.randrange(64, 4096)
        seconds = costs.prefill_s(PROFILE, n, 0) * (50.0 if number % 10 == 0 else 1.0)
        learned.heard(with_steps(prefill(n, 0, seconds)), 0.0)
    found = learned.costs(with_steps())
    assert costs.prefill_s(found, 1000, 0) == pytest.approx(
        costs.prefill_s(PROFILE, 1000, 0), rel=0.15
    )
    for _ in range(500):
        learned.heard(with_steps(prefill(1000, 0, 100.0)), 0.0)
    found = learned.costs(with_steps())
    assert found.token_s <= 1.5 * PROFILE.token_s and found.step_s <= 1.5 * PROFILE.step_s


def test_decode_learns_what_context_costs_though_no_profile_tells() -> None:
    chance, learned = random.Random(3), Learned()
    for _ in range(800):
        sequences, context = chance.randrange(1, 64), chance.randrange(1000, 200_000)
        seconds = 0.02 + 5e-4 * (sequences - 1) + 2e-7 * context
        learned.heard(with_steps(StepSample(0, 0, sequences, context, seconds)), 0.0)
    report = with_steps()
    assert learned.context_token_s(report) == pytest.approx(2e-7, rel=0.15)
    step_s = costs.decode_s(learned.costs(report), 32, 100_000, learned.context_token_s(report))
    assert step_s == pytest.approx(0.02 + 5e-4 * 31 + 0.02, rel=0.05)


def test_a_lasting_change_is_noticed_and_followed() -> None:
    learned = Learned()
    for _ in range(200):
        learned.heard(with_steps(prefill(1000, 0, costs.prefill_s(PROFILE, 1000, 0))), 0.0)
    assert learned.alarms() == 0
    for _ in range(100):
        learned.heard(with_steps(prefill(1000, 0, 1.4 * costs.prefill_s(PROFILE, 1000, 0))), 0.0)
    assert learned.alarms() >= 1
    assert costs.prefill_s(learned.costs(with_steps()), 1000, 0) == pytest.approx(
        1.4 * costs.prefill_s(PROFILE, 1000, 0), rel=0.1
    )
    drift = Drift()
    chance = random.Random(5)
    assert not any(drift.add(chance.gauss(0.0, 0.1)) for _ in range(5000)), "noise is no drift"


numbers = st.one_of(st.just(NAN), st.just(INF), st.just(-1.0), st.floats(), st.just(0.0))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 10**9), st.integers(-5, 10**9), numbers), max_size=30))
def test_whatever_comes_in_what_goes_out_is_finite_and_positive(
    steps: list[tuple[int, int, float]],
) -> None:
    learned = Learned()
    for n, p, seconds in steps:
        learned.heard(with_steps(StepSample(n, p, n % 7, p, seconds)), 0.0)
        learned.links.add(V, W, n, seconds, 0.0)
        learned.lengths.add("t", "m", p)
    found = learned.costs(with_steps())
    assert all(math.isfinite(x) and x > 0 for x in dataclasses.astuple(found))
    assert math.isfinite(learned.context_token_s(with_steps()))
    assert 0 < learned.links.between(V, W, 1.0).bytes_per_s < INF
    assert 1 <= learned.lengths.expected("t", "m", 0, 100) <= 100


@pytest.mark.parametrize("bad", [(NAN,) * 5, (INF,) * 5, (-1.0,) * 5, (0.0,) * 5, (1e9,) * 5])
def test_a_profile_that_makes_no_sense_is_replaced_by_the_shipped_one(
    bad: tuple[float, float, float, float, float],
) -> None:
    learned = Learned()
    assert learned.costs(with_steps(cost=CostModel(*bad))) == SHIPPED
    assert learned.refused_profiles == 1


def test_links_are_learnt_and_an_unknown_one_is_like_the_others() -> None:
    links = Links()
    assert links.between(V, W, 1.0) == LINK
    for _ in range(30):
        links.add(V, W, 100_000_000, 0.051, 0.0)
    assert links.between(V, W, 1.0).bytes_per_s == pytest.approx(2e9, rel=0.05)
    assert links.between(W, V, 1.0).bytes_per_s == pytest.approx(2e9, rel=0.05)
    for bad in (NAN, INF, 0.0, -1.0):
        links.add(V, W, 1000, bad, 0.0)
    links.add(V, W, 0, 1.0, 0.0)
    links.add(V, W, 10**15, 1e-6, 0.0)
    assert links.refused == 6 and links.between(V, W, 1.0).bytes_per_s < 3e9
    links.forget(W)
    assert (V, W) not in links._links


def test_survival_of_lengths() -> None:
    table, chance = Survival(), random.Random(4)
    assert table.survives(10, 5) == 1.0
    for _ in range(2000):
        table.add(100 if chance.random() < 0.5 else 1000)
    assert table.quantile(0.25) == pytest.approx(100, rel=0.3)
    assert table.quantile(0.9) == pytest.approx(1000, rel=0.3)
    assert table.survives(400, 50) == pytest.approx(0.5, abs=0.05)
    assert table.survives(300, 200) > 0.95, "whoever got past 100 goes on to 1000"
    assert table.quantile(0.5, after=300) == pytest.approx(700, rel=0.35)


def test_a_class_with_few_samples_borrows_and_hints_go_first() -> None:
    lengths = Lengths()
    assert lengths.expected("a", "m", 0, 10_000) == 256
    for _ in range(400):
        lengths.add("big", "m", 2000)
    assert lengths.expected("small", "m", 0, 10_000) == pytest.approx(2000, rel=0.3)
    for _ in range(400):
        lengths.add("small", "m", 20)
    assert lengths.expected("small", "m", 0, 10_000) == pytest.approx(20, rel=0.3)
    assert lengths.expected("small", "m", 77, 10_000) == 77
    assert lengths.expected("big", "m", 0, 50) == 50
    for number in range(2000):
        lengths.add(f"tenant {number}", "m", 5)
    assert len(lengths.shown()) <= 512


def test_a_worker_that_promises_too_much_is_believed_less_up_to_a_limit() -> None:
    trust = Trust()
    assert trust.factor(W) == 1.0
    for _ in range(200):
        trust.took(W, 0.1 * trust.factor(W), 0.5)
    assert trust.factor(W) == pytest.approx(5.0, rel=0.3)
    for _ in range(500):
        trust.took(W, 0.001, 100.0)
    assert trust.factor(W) == pytest.approx(8.0)
    for bad in (NAN, INF, -1.0, 0.0):
        trust.took(W, 0.1, bad)
    for _ in range(500):
        trust.took(W, 10.0, 0.1)
    assert trust.factor(W) == 1.0, "never less than what it reports"


def test_parts_of_a_sample_add_up_to_the_cost_functions() -> None:
    sample = StepSample(100, 50, 0, 0, 1.0)
    profile = WorkCosts(*dataclasses.astuple(PROFILE))
    assert sum(prefill_parts(profile, sample)) == pytest.approx(costs.prefill_s(PROFILE, 100, 50))
    step = StepSample(0, 0, 8, 0, 1.0)
    assert sum(decode_parts(profile, step)) == pytest.approx(costs.decode_s(PROFILE, 8))
    fit = FactorFit(((0.5, 1.5),), (1.0,))
    assert fit.add((0.0,), 1.0) is None and fit.refused == 1


def test_measurements_of_a_heartbeat_reach_the_models() -> None:
    learned = Learned()
    report = dataclasses.replace(beat("decode-0"), links=(LinkSample(W, 10**8, 0.5),))
    learned.heard(report, 0.0)
    assert learned.links.samples == 1
    assert learned.shown()["links"]


def test_a_link_that_was_never_measured_is_as_fast_as_its_readers_card() -> None:
    links = Links()
    for _ in range(30):
        links.add(V, W, 100_000_000, 0.051, 0.0)
        links.add(W, V, 100_000_000, 1.001, 0.0)
    other = WorkerId("other")
    assert links.between(V, other, 1.0).bytes_per_s == pytest.approx(2e9, rel=0.05)
    assert links.between(W, other, 1.0).bytes_per_s == pytest.approx(1e8, rel=0.05)
    assert links.of(other, 1.0) == links.between(other, V, 1.0)
    links.forget(V)
    assert links.of(V, 1.0) == links.of(other, 1.0)


def test_reads_that_share_a_card_do_not_make_a_link_slow() -> None:
    links = Links()
    for number in range(64):
        links.add(V, W, 100_000_000, 0.051 if number % 8 == 0 else 0.951, 0.0)
    assert links.of(V, 1.0).bytes_per_s == pytest.approx(2e9, rel=0.05)
    for _ in range(16):
        links.add(V, W, 100_000_000, 1.001, 31.0)
    assert links.of(V, 32.0).bytes_per_s == pytest.approx(1e8, rel=0.06), "that is its speed now"


def test_cards_are_alike_until_one_is_of_another_kind() -> None:
    """Else the one that was lucky in its reads would get all of them."""
    links, owner = Links(), WorkerId("owner")
    for number in range(16):
        assert links.of(W, 1.0) == links.of(V, 1.0)
        links.add(V, owner, 100_000_000, 0.051, number / 16)
        links.add(W, owner, 100_000_000, 0.076, number / 16)
    assert links.of(W, 1.0) == links.of(V, 1.0)
    for _ in range(15):
        links.add(X, owner, 100_000_000, 0.101, 1.0)
    assert links.of(X, 1.0) == links.of(V, 1.0), "too few to tell"
    links.add(X, owner, 100_000_000, 0.101, 1.0)
    assert links.of(X, 1.0).bytes_per_s == pytest.approx(1e9, rel=0.05)


def test_one_slow_way_into_a_fast_card_is_told_apart() -> None:
    links, far = Links(), WorkerId("far")
    for number in range(32):
        links.add(V, W if number % 2 else far, 100_000_000, 0.051 if number % 2 else 1.001, 0.0)
    assert links.between(V, W, 1.0).bytes_per_s == pytest.approx(2e9, rel=0.05)
    assert links.between(V, far, 1.0).bytes_per_s == pytest.approx(1e8, rel=0.06)


def test_one_read_that_seems_too_fast_changes_nothing() -> None:
    links = Links()
    for number in range(8):
        links.add(V, W, 100_000_000, 0.0011 if number == 5 else 0.051, 0.0)
    assert links.between(V, W, 1.0).bytes_per_s == pytest.approx(2e9, rel=0.05)


def test_a_reader_that_nobody_asks_for_long_is_believed_to_be_like_the_others_again() -> None:
    links = Links()
    for _ in range(20):
        links.add(V, W, 100_000_000, 1.001, 0.0)
    for _ in range(20):
        links.add(W, V, 100_000_000, 0.051, 50.0)
    assert links.of(V, 59.0).bytes_per_s == pytest.approx(1e8, rel=0.06)
    assert links.of(V, 61.0).bytes_per_s == pytest.approx(2e9, rel=0.06)
    assert links.between(V, W, 61.0) == links.of(V, 61.0)


def test_context_that_costs_much_is_learnt_too() -> None:
    """On a CPU a thousand tokens of context take as long as all weights."""
    learned, chance = Learned(), random.Random(3)
    for _ in range(800):
        sequences, context = chance.randrange(1, 8), chance.randrange(100, 4_000)
        seconds = 0.02 + 5e-4 * (sequences - 1) + 2e-5 * context
        learned.heard(with_steps(StepSample(0, 0, sequences, context, seconds)), 0.0)
    assert learned.context_token_s(with_steps()) == pytest.approx(2e-5, rel=0.15)
