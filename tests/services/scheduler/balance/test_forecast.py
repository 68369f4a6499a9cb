"""The forecast by its formulas: known fixed points, order, and bounds."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.balance.demand import Load, Sample
from services.scheduler.core.balance.forecast import Speeds, Split, forecast
from shared.costs import WorkCosts

COSTS = WorkCosts(
    step_s=0.01, token_s=0.001, pair_s=0.0, decode_step_s=0.02, decode_sequence_s=0.004
)
SPEEDS = Speeds(COSTS, COSTS, 0.0, decode_pages=1000, block_tokens=16)
CHAT = Sample(400, 0, 100, 1.0, 0.06)


def load(rate: float, *samples: Sample) -> Load:
    return Load(rate, samples or (CHAT,), 100, needs_prefill=False)


def test_decode_reaches_the_fixed_point_of_arrivals_and_steps() -> None:
    """Tokens come at 100 a second: B sequences, steps of 16 ms + 4 ms * B, B = 100 * step."""
    found = forecast(load(1.0), Split(4, 1), SPEEDS)
    sequences = 100 * 0.016 / (1 - 100 * 0.004)
    assert found.tpot_s == pytest.approx(0.016 + 0.004 * sequences, rel=0.01)


def test_a_queue_of_one_server_waits_as_pollaczek_and_khinchine_say() -> None:
    """Prompts of 400 tokens take 0.41 s: at 1/s, rho is 0.41 and the mean wait 0.142 s. What fits
    into one second: 1 - 0.41 * exp(-0.59 s * 0.41 / 0.142 s)."""
    found = forecast(load(1.0), Split(1, 8), SPEEDS)
    rho, own_s = 0.41, 0.41
    factor = rho ** (math.sqrt(4.0) - 1.0)
    wait_s = factor * own_s / 2 / (1 - rho)
    assert found.prefill_busy == pytest.approx(rho)
    expected = 1 - factor * math.exp(-(1.0 - own_s) * factor / wait_s)
    assert found.ttft_met == pytest.approx(expected, rel=1e-6)


def test_beyond_capacity_the_share_falls_with_what_is_not_served() -> None:
    busy = [forecast(load(rate), Split(1, 32), SPEEDS).ttft_met for rate in (3.0, 6.0)]
    assert busy[0] == pytest.approx(2 * busy[1], rel=1e-6)


def test_a_prompt_that_takes_too_long_alone_is_never_in_time() -> None:
    slow = dataclasses.replace(CHAT, new_tokens=2000)
    assert forecast(load(0.01, slow), Split(8, 8), SPEEDS).ttft_met == 0.0


def test_pages_bound_what_decode_can_take() -> None:
    small = dataclasses.replace(SPEEDS, decode_pages=60)
    found = forecast(load(3.0), Split(16, 1), small)
    assert found.ttft_met < 0.5 * forecast(load(3.0), Split(16, 4), small).ttft_met


def test_far_beyond_its_objectives_the_less_late_split_is_worth_more() -> None:
    """No split keeps anything: the step towards the one that is less late still counts."""
    found = [forecast(load(4.0), Split(4 - n, n), SPEEDS) for n in (1, 2)]
    assert [f.goodput for f in found] == pytest.approx([0.0, 0.0], abs=0.01)
    assert found[1].worth > 1.1 * found[0].worth


def test_colocated_pays_for_prompts_with_the_time_of_answers() -> None:
    light = forecast(load(0.2, dataclasses.replace(CHAT, new_tokens=20)), Split(0, 2), SPEEDS)
    heavy = forecast(load(1.5), Split(0, 2), SPEEDS)
    assert light.attainment > 0.95
    assert heavy.tpot_s > 1.5 * light.tpot_s


def test_colocated_steps_are_as_long_as_the_workers_say() -> None:
    """400 tokens in steps of 32 pay the fixed part thirteen times; answers come faster for it."""
    short, long = (
        forecast(load(0.5), Split(0, 2), dataclasses.replace(SPEEDS, step_tokens=tokens))
        for tokens in (32, 512)
    )
    assert short.prefill_busy > 1.2 * long.prefill_busy
    assert short.ttft_met < long.ttft_met
    assert short.tpot_s < long.tpot_s
    silent = forecast(load(0.5), Split(0, 2), SPEEDS)
    assert silent == forecast(load(0.5), Split(0, 2), dataclasses.replace(SPEEDS, step_tokens=256))


def test_no_decode_worker_keeps_nothing_and_no_load_asks_nothing() -> None:
    assert forecast(load(1.0), Split(3, 0), SPEEDS).goodput == 0.0
    assert forecast(Load(0.0, (), 0, needs_prefill=False), Split(1, 1), SPEEDS).attainment == 1.0


SAMPLES = st.builds(
    Sample,
    st.integers(1, 20_000),
    st.integers(0, 20_000),
    st.integers(1, 5_000),
    st.floats(0.01, 30.0),
    st.floats(0.001, 1.0),
)


@given(st.lists(SAMPLES, min_size=1, max_size=5), st.floats(0.01, 500.0), st.integers(0, 12))
def test_always_shares_and_never_worse_with_one_more(
    samples: list[Sample], rate: float, prefill: int
) -> None:
    asked = load(rate, *samples)
    found = forecast(asked, Split(prefill, 3), SPEEDS)
    for share in (found.ttft_met, found.tpot_met):
        assert 0.0 <= share <= 1.0
    assert 0.0 <= found.goodput <= rate and math.isfinite(found.tpot_s)
    if prefill:
        more = forecast(asked, Split(prefill + 1, 3), SPEEDS)
        assert more.goodput >= found.goodput - 1e-9
        wider = forecast(asked, Split(prefill, 4), SPEEDS)
        assert wider.tpot_met >= found.tpot_met - 1e-6
