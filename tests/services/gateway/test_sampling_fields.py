"""Fields that say how tokens are chosen: what passes, what it becomes, what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from services.gateway.openai_request import read_chat, read_completion
from services.gateway.sampling import sampling_of_choice
from shared.errors import ClientError
from shared.wire.sampling import Sampling

VOCAB = 512
BOTH: list[tuple[str, list[Any]]] = [
    ("temperature", [-0.1, 2.01, "1", True, [1]]),
    ("top_p", [0, -1, 1.01, False]),
    ("top_k", [-2, VOCAB + 1, 1.0, "5", True, 2**70]),
    ("min_p", [-0.1, 1.1, "0"]),
    ("repetition_penalty", [0, -1, 2.1, 10**400]),
    ("presence_penalty", [-2.1, 2.1, "a"]),
    ("frequency_penalty", [-2.1, 2.1, None, {}][:2]),
    ("seed", [2**63, -(2**63) - 1, 1.5]),
    ("min_tokens", [-1, 1.0, "2", 2**31]),
    ("stop_token_ids", [7, [-1], [VOCAB], ["1"], [1.0], [True], [1] * 17]),
    ("include_stop_str_in_output", [1, "true"]),
    (
        "logit_bias",
        [
            [],
            5,
            {"-1": 1},
            {str(VOCAB): 1},
            {"abc": 1},
            {"01": 1},
            {"1.0": 1},
            {"1": 100.1},
            {"1": -101},
            {"1": "5"},
            {"1": True},
            {"1": None},
            {str(token): 1 for token in range(301)},
        ],
    ),
]


def chat(**more: Any) -> Sampling:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **more}
    return read_chat(body, VOCAB, False).generation.sampling


def completion(**more: Any) -> Sampling:
    body = {"model": "m", "prompt": "x", **more}
    return read_completion(body, VOCAB, False).generation.sampling


@pytest.mark.parametrize(("name", "values"), BOTH)
def test_out_of_range_is_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        for read in (chat, completion):
            with pytest.raises(ClientError) as refused:
                read(**{name: value})
            assert refused.value.param == name, value
            assert refused.value.code == "invalid_parameter", value


def test_borders_pass() -> None:
    body = {
        "temperature": 2,
        "top_p": 1,
        "top_k": VOCAB,
        "min_p": 1,
        "repetition_penalty": 2,
        "presence_penalty": -2,
        "frequency_penalty": 2.0,
        "seed": -(2**63),
        "min_tokens": 3,
        "stop_token_ids": [0, VOCAB - 1, 0],
        "logit_bias": {"0": -100, str(VOCAB - 1): 100},
    }
    found = chat(**body)
    assert found == completion(**body)
    assert (found.top_k, found.min_p, found.repetition_penalty) == (VOCAB, 1.0, 2.0)
    assert (found.presence_penalty, found.frequency_penalty) == (-2.0, 2.0)
    assert (found.bias_ids, found.biases) == ((0, VOCAB - 1), (-100.0, 100.0))
    assert (found.stop_token_ids, found.min_tokens) == ((0, VOCAB - 1), 3)


@pytest.mark.parametrize("value", [-1, 0, None])
def test_top_k_is_off(value: int | None) -> None:
    assert chat(top_k=value).top_k == 0


def test_nothing_said_changes_nothing() -> None:
    quiet = Sampling(1.0, 1.0, 4, 0, ())
    assert chat(seed=4) == completion(seed=4) == quiet
    nothing = dict.fromkeys((name for name, _ in BOTH), None)
    assert chat(**(nothing | {"seed": 4})) == quiet


def test_ends_and_seeds_of_choices() -> None:
    first = sampling_of_choice(chat(seed=5, stop_token_ids=[9, 2]), 0, 30, (2, 3))
    assert (first.seed, first.max_tokens, first.stop_token_ids) == (5, 30, (9, 2, 3))
    on = sampling_of_choice(chat(ignore_eos=True, stop_token_ids=[9]), 0, 30, (2, 3))
    assert on.stop_token_ids == (9,)
    seeds = [
        sampling_of_choice(chat(seed=seed), choice, 1, ()).seed
        for seed in (5, 6)
        for choice in range(8)
    ]
    assert len(set(seeds)) == 16
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert seeds[1] == 4885738541296314993
