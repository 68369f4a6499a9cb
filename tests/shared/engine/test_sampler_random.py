"""The batched sampler against the plain one: random rows, random parameters, odd company."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.batch import Draw, Penalties
from shared.engine.chance import uniform
from shared.engine.likeliest import likeliest
from shared.engine.logprobs import FLOOR, score
from shared.engine.sampler import sample
from shared.engine.shaping import shape

from .plain_sampler import kept, logprobs, probabilities, shaped

VOCABS = (7, 130, 300)
SLACK = 1e-4


def rows_of(seed: int, count: int, vocab: int, coarse: bool) -> torch.Tensor:
    """Logits; coarse ones hold many equal values, as bf16 does."""
    values = torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 4
    return (values * 2).round() / 2 if coarse else values


@st.composite
def penalties(draw: Any, vocab: int) -> Penalties:
    tokens = draw(st.lists(st.integers(0, vocab - 1), max_size=40))
    strength = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 2.0])
    return Penalties(
        repetition=draw(st.sampled_from([0.5, 1.0, 1.3, 2.0])),
        presence=draw(strength),
        frequency=draw(strength),
        history=struct.pack(f"<{len(tokens)}i", *tokens),
        prompt_tokens=draw(st.integers(0, len(tokens))),
    )


@st.composite
def one_draw(draw: Any, vocab: int) -> Draw:
    ids = draw(st.lists(st.integers(0, vocab - 1), max_size=4, unique=True))
    return Draw(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_p=draw(st.sampled_from([0.05, 0.5, 0.9, 1.0])),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        position=draw(st.integers(0, 9_000)),
        top_k=draw(st.sampled_from([0, 1, 3, 128, vocab])),
        min_p=draw(st.sampled_from([0.0, 0.1, 1.0])),
        bias_ids=tuple(ids),
        biases=tuple(draw(st.sampled_from([-100.0, -1.5, 3.0])) for _ in ids),
        banned=tuple(draw(st.lists(st.integers(0, vocab - 1), max_size=3))),
        penalties=draw(st.none() | penalties(vocab)),
    )


@st.composite
def batches(draw: Any) -> tuple[torch.Tensor, list[Draw]]:
    vocab = draw(st.sampled_from(VOCABS))
    draws = draw(st.lists(one_draw(vocab), min_size=1, max_size=6))
    return rows_of(draw(st.integers(0, 999)), len(draws), vocab, draw(st.booleans())), draws


@settings(max_examples=30, deadline=None)
@given(batches())
def test_bias_penalties_and_bans(batch: tuple[torch.Tensor, list[Draw]]) -> None:
    logits, draws = batch
    before = logits.clone()
    found = shape(logits, draws)
    assert torch.equal(logits, before)
    wanted = torch.tensor([shaped(row.tolist(), draws[at]) for at, row in enumerate(before)])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(batches())
def test_only_allowed_tokens_are_drawn(batch: tuple[torch.Tensor, list[Draw]]) -> None:
    logits, draws = batch
    tokens = sample(logits, draws)
    exact = shape(logits, draws)
    for row, (token, draw) in enumerate(zip(tokens, draws, strict=True)):
        values = exact[row].double().tolist()
        if draw.temperature == 0:
            assert token == min(range(len(values)), key=lambda one: (-values[one], one))
            continue
        weights = probabilities(values, draw.temperature)
        assert token in kept(weights, draw, SLACK)
        assert token in _aimed(weights, draw)


def _aimed(weights: list[float], draw: Draw) -> set[int]:
    """Tokens that the row's chance points at, give or take float32's exactness at the borders:
    likeliest first, or in order of the vocabulary where few candidates do not decide."""
    everything = list(range(len(weights)))
    orders = [everything]
    if draw.top_p < 1 or draw.top_k > 0 or draw.min_p > 0:
        cuts = [kept(weights, draw, slack) for slack in (-SLACK, SLACK)]
        orders = [*cuts, *(sorted(cut) for cut in cuts)]
    found = set()
    for order in orders:
        total = math.fsum(weights[token] for token in order)
        aim, reached = uniform(draw.seed, draw.position), 0.0
        for token in order:
            low, reached = reached, reached + weights[token] / total
            if low - 1e-4 <= aim <= reached + 1e-4:
                found.add(token)
    return found


@settings(max_examples=25, deadline=None)
@given(batches())
def test_company_does_not_matter(batch: tuple[torch.Tensor, list[Draw]]) -> None:
    logits, draws = batch
    alone = [sample(logits[at : at + 1], [draw])[0] for at, draw in enumerate(draws)]
    assert sample(logits, draws) == alone
    assert sample(logits.flip(0), draws[::-1]) == alone[::-1]


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 999),
    top_p=st.sampled_from([0.01, 0.6, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 127, 128, 129, 2_500]),
    min_p=st.sampled_from([0.0, 0.001, 0.5]),
    heat=st.sampled_from([0.2, 1.0, 8.0]),
    coarse=st.booleans(),
)
def test_candidates_and_a_full_sort_agree(
    seed: int, top_p: float, top_k: int, min_p: float, heat: float, coarse: bool
) -> None:
    """Beyond the first candidates: flat rows, equal weights at the end of what was looked at."""
    weights = (rows_of(seed, 2, 3_000, coarse) / heat).softmax(-1)
    draws = [Draw(1.0, top_p, 0, 0, top_k, min_p), Draw(1.0, 0.5, 0, 0)]
    cuts = {row: (cut, at) for cut in likeliest(weights, draws) for at, row in enumerate(cut.rows)}
    assert sorted(cuts) == [0, 1]
    for row, (cut, at) in cuts.items():
        bounds = [0.0, *cut.bounds[at].tolist()]
        pairs = zip(cut.ids[at].tolist(), bounds, bounds[1:], strict=False)
        ids = {token for token, before, after in pairs if after > before}
        count = len(ids)
        exact = weights[row].double().tolist()
        least, most = (len(kept(exact, draws[row], slack)) for slack in (-SLACK, SLACK))
        assert least <= count <= most
        assert ids == set(kept(exact, Draw(1.0, 1.0, 0, 0), 0.0)[:count])


@settings(max_examples=25, deadline=None)
@given(batches(), st.lists(st.none() | st.integers(0, 20), min_size=6, max_size=6))
def test_logprobs_are_the_models_own(
    batch: tuple[torch.Tensor, list[Draw]], counts: list[int | None]
) -> None:
    logits, draws = batch
    draws = [replace(draw, logprobs=counts[at]) for at, draw in enumerate(draws)]
    tokens = sample(logits, draws)
    together = score(logits, draws, tokens)
    for at, (told, draw) in enumerate(zip(together, draws, strict=True)):
        assert told == score(logits[at : at + 1], [draw], [tokens[at]])[0]
        if draw.logprobs is None:
            assert told is None
            continue
        assert told is not None
        row = logits[at].tolist()
        exact = logprobs(row)
        assert math.isclose(told.logprob, exact[tokens[at]], abs_tol=1e-4)
        order = sorted(range(len(row)), key=lambda one: (-row[one], one))
        assert list(told.top_logprobs) == sorted(told.top_logprobs, reverse=True)
        wanted = [exact[token] for token in order[: draw.logprobs]]
        assert [exact[token] for token in told.top_ids] == wanted
        assert all(
            math.isclose(value, exact[token], abs_tol=1e-4)
            for token, value in zip(told.top_ids, told.top_logprobs, strict=True)
        )


def test_minus_infinity_is_told_as_the_floor() -> None:
    row = torch.tensor([[0.0, -math.inf, 1.0]])
    (told,) = score(row, [Draw(0.0, 1.0, 0, 0, logprobs=3)], [1])
    assert told is not None
    assert told.logprob == told.top_logprobs[2] == FLOOR
