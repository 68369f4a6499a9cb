"""Draws: deterministic in (seed, position), blind to company, true to the distribution."""

from __future__ import annotations

import struct

import pytest
import torch

from shared.engine.batch import Draw, Penalties
from shared.engine.chance import uniform
from shared.engine.sampler import sample
from shared.errors import EngineError

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))


def draw(position: int, temperature: float = 1.0, top_p: float = 1.0, seed: int = 9) -> Draw:
    return Draw(temperature, top_p, seed, position)


def test_greedy_takes_the_lowest_of_equals() -> None:
    rows = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    assert sample(rows, [draw(0, 0.0), draw(1, 0.0)]) == [1, 0]
    assert sample(rows[:0], []) == []


def test_a_draw_ignores_its_company() -> None:
    rows = torch.randn(6, 2_000, generator=torch.Generator().manual_seed(1))
    draws = [draw(index, top_p=0.9 if index % 2 else 1.0) for index in range(6)]
    together = sample(rows, draws)
    alone = [sample(rows[index : index + 1], [draws[index]])[0] for index in range(6)]
    assert together == alone
    assert sample(rows.flip(0), draws[::-1]) == together[::-1]


def test_seed_and_position_decide() -> None:
    rows = LOGITS.expand(50, -1)
    first = sample(rows, [draw(index) for index in range(50)])
    assert first == sample(rows, [draw(index) for index in range(50)])
    assert first != sample(rows, [draw(index, seed=10) for index in range(50)])
    assert len(set(first)) > 2


@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"),
    [
        (1.0, 1.0, [0.5, 0.25, 0.15, 0.07, 0.03]),
        (1.0, 0.7, [2 / 3, 1 / 3, 0, 0, 0]),
        (1.0, 0.75, [2 / 3, 1 / 3, 0, 0, 0]),
        (1.0, 0.01, [1, 0, 0, 0, 0]),
        (0.5, 1.0, [0.735, 0.184, 0.066, 0.0144, 0.0026]),
    ],
)
def test_frequencies(temperature: float, top_p: float, expected: list[float]) -> None:
    count = 4_000
    draws = [draw(index, temperature, top_p) for index in range(count)]
    tokens = torch.tensor(sample(LOGITS.expand(count, -1), draws))
    found = torch.bincount(tokens, minlength=5) / count
    wanted = torch.tensor(expected, dtype=torch.float32)
    torch.testing.assert_close(found, wanted, atol=0.025, rtol=0)
    assert not found[wanted == 0].any()


def test_wide_nucleus_is_found_beyond_the_likeliest() -> None:
    flat = torch.zeros(1, 5_000)
    tokens = {sample(flat, [draw(index, top_p=0.5)])[0] for index in range(300)}
    assert len(tokens) > 250


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e6])
def test_extreme_temperatures(temperature: float) -> None:
    (token,) = sample(LOGITS[None], [draw(3, temperature)])
    assert 0 <= token < 5
    assert temperature > 1 or token == 0


def test_not_finite_is_refused() -> None:
    with pytest.raises(EngineError):
        sample(torch.tensor([[0.0, float("nan")]]), [draw(0)])


def test_uniform_is_fixed_for_all_time_and_in_range() -> None:
    values = [uniform(-5, position) for position in range(1_000)]
    assert all(0 <= value < 1 for value in values)
    assert abs(sum(values) / 1_000 - 0.5) < 0.03
    assert uniform(7, 3) == uniform(7 + (1 << 64), 3)
    assert uniform(7, 3) == 0.6179570071226089


def test_one_likeliest_token_is_greedy_and_equals_go_by_id() -> None:
    rows = torch.tensor([[1.0, 3.0, 3.0, 3.0, 2.0]])
    ones = [Draw(2.0, 1.0, 9, at, top_k=1) for at in range(20)]
    assert sample(rows.expand(20, -1), ones) == [1] * 20
    twos = [Draw(2.0, 1.0, 9, at, top_k=2) for at in range(60)]
    assert set(sample(rows.expand(60, -1), twos)) == {1, 2}
    every = [Draw(2.0, 1.0, 9, at, min_p=1.0) for at in range(60)]
    assert set(sample(rows.expand(60, -1), every)) == {1, 2, 3}


def test_everything_banned_is_refused() -> None:
    with pytest.raises(EngineError):
        sample(torch.zeros(1, 3), [Draw(0.0, 1.0, 0, 0, banned=(0, 1, 2))])


def test_a_history_outside_the_vocabulary_is_refused() -> None:
    for token in (-1, 5):
        seen = Penalties(1.5, 0.0, 0.0, struct.pack("<i", token), 1)
        with pytest.raises(EngineError):
            sample(LOGITS[None], [Draw(0.0, 1.0, 0, 0, penalties=seen)])
