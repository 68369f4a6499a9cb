"""Sampled tokens against a stable sort in float64, with ties, bans and rows without numbers."""

from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.sampling import draw as kernel
from kernels.sampling import reference

RULES = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.0, 20, 0.5, 0.0),
    (2.0, 0, 0.95, 0.02),
    (0.9, 7, 0.9, 0.3),
    (1e-4, 0, 0.9, 0.0),
    (1.0, 1, 0.1, 1.0),
    (1.0, 10_000, 1.0, 0.0),
]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles a row, without a vocabulary of thousands."""
    monkeypatch.setattr(kernel, "TILE", 128)


def sample(
    logits: torch.Tensor, rules: list[tuple[float, int, float, float]], uniforms: torch.Tensor
) -> list[int]:
    heat, top_k, top_p, min_p = zip(*rules, strict=True)
    return dispatch.sample_tokens(
        logits,
        torch.tensor(heat),
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p),
        torch.tensor(min_p),
        uniforms,
    ).tolist()


def agree(logits: torch.Tensor, rules: list[tuple[float, int, float, float]], seed: int) -> None:
    uniforms = torch.rand(len(rules), generator=torch.Generator().manual_seed(seed))
    got = sample(logits, rules, uniforms)
    for row, (token, rule) in enumerate(zip(got, rules, strict=True)):
        weights = reference.kept(logits[row], *rule)
        assert token == reference.draw(weights, float(uniforms[row])), rule


def test_each_rule_keeps_and_draws_what_the_sort_does() -> None:
    logits = torch.randn((len(RULES), 150), generator=torch.Generator().manual_seed(1)) * 3
    agree(logits, RULES, 2)


def test_ties_go_to_the_lower_id() -> None:
    """Five values only: every threshold cuts through equal logits."""
    generator = torch.Generator().manual_seed(3)
    rules = [RULES[1], RULES[2], RULES[4], RULES[6]]
    logits = torch.randint(-2, 3, (len(rules), 130), generator=generator).float()
    agree(logits, rules, 4)


def test_half_precision_logits_in_wide_rows() -> None:
    logits = torch.randn((2, 99), generator=torch.Generator().manual_seed(5)).half()
    agree(logits[:, :77], [(1.0, 9, 0.9, 0.0), (1.0, 0, 0.5, 0.01)], 6)


def test_greedy_takes_the_first_of_the_highest() -> None:
    logits = torch.zeros((2, 100))
    logits[0, [40, 70]] = 2.0
    assert sample(logits, [(0.0, 0, 1.0, 0.0), (0.0, 7, 0.3, 0.0)], torch.full((2,), 0.9)) == [
        40,
        0,
    ]


def test_the_ends_of_chance_stay_inside() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 1.0, float("-inf")]]).repeat(2, 1)
    rule = (1.0, 0, 1.0, 0.0)
    assert sample(logits, [rule, rule], torch.tensor([0.0, 1 - 2**-24])) == [1, 2]


def test_rows_without_a_number_to_draw_from_say_so() -> None:
    logits = torch.zeros((4, 70))
    logits[0, 69] = float("nan")
    logits[1, 3] = float("inf")
    logits[2] = float("-inf")
    got = sample(logits, [(1.0, 3, 0.9, 0.0)] * 4, torch.full((4,), 0.1))
    assert got[:3] == [kernel.INVALID] * 3
    assert got[3] == 0


def test_a_row_does_not_depend_on_its_mates() -> None:
    logits = torch.randn((2, 90), generator=torch.Generator().manual_seed(7))
    rules = [RULES[0], RULES[2]]
    uniforms = torch.tensor([0.3, 0.6])
    alone = [sample(logits[i : i + 1], [rules[i]], uniforms[i : i + 1])[0] for i in range(2)]
    assert sample(logits, rules, uniforms) == alone


def test_parameters_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="parameters"):
        sample(torch.zeros((2, 5)), [RULES[0]], torch.zeros(1))
