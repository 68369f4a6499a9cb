"""The torch engine as workers see it: tokens over steps, pages handed over, refusals."""

from __future__ import annotations

import struct

import pytest
import torch

from shared.checkpoint import Checkpoint, open_checkpoint
from shared.engine.batch import Draw, Engine, Penalties, StepItem
from shared.engine.building import build_engine
from shared.engine.profile import measure_costs
from shared.errors import EngineError, StartupError
from shared.ids import PageId

from ..checkpoint.files import tiny_spec, write_folder
from .reference_model import last_logits
from .sequences import BLOCK, Sampling, copy_pages, decode, pages_for, prefill, scattered, table

PAGES = 48
PROMPT = [(31 * index + 7) % 512 for index in range(120)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(write_folder(tmp_path_factory.mktemp("hf"), tiny_spec(), shards=2)))


def engine(checkpoint: Checkpoint, dtype: str = "float32") -> Engine:
    return build_engine(checkpoint, "cpu", dtype, PAGES, BLOCK, "torch")


def test_greedy_follows_the_reference(checkpoint: Checkpoint) -> None:
    one, pages = engine(checkpoint), scattered(PAGES, pages_for(130))
    found = decode(one, 120, prefill(one, PROMPT, pages), pages, 6)
    tokens = list(PROMPT)
    for _ in range(6):
        tokens.append(int(last_logits(checkpoint, tokens).argmax()))
    assert found == tokens[120:]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 0.9, seed=11)])
def test_handed_over_pages_go_on_alike(
    checkpoint: Checkpoint, dtype: str, sampling: Sampling
) -> None:
    source, target = engine(checkpoint, dtype), engine(checkpoint, dtype)
    theirs, ours = scattered(PAGES, 9, 1), scattered(PAGES, 9, 2)
    first = prefill(source, PROMPT, theirs, sampling)
    copy_pages(source, target, list(zip(theirs, ours, strict=True)), source.memory.page_bytes)
    assert source.checksums(theirs) == target.checksums(ours)
    assert decode(target, 120, first, ours, 8, sampling) == decode(
        source, 120, first, theirs, 8, sampling
    )


def test_options_and_logprobs_in_a_batch_are_those_of_each_alone(checkpoint: Checkpoint) -> None:
    one, pages = engine(checkpoint), scattered(PAGES, pages_for(130))
    prefill(one, PROMPT, pages)
    seen = Penalties(1.3, 0.5, 0.2, struct.pack("<120i", *PROMPT), 100)
    draws = [
        Draw(0.0, 1.0, 3, 1, logprobs=4),
        Draw(0.9, 0.9, 3, 1, top_k=50, min_p=0.01, penalties=seen, logprobs=0),
        Draw(0.9, 1.0, 4, 1, bias_ids=(9,), biases=(100.0,)),
        Draw(0.0, 1.0, 3, 1, banned=(PROMPT[-1],), penalties=seen),
    ]
    items = [StepItem((PROMPT[-1],), 119, pages, draw) for draw in draws]
    filling = StepItem(tuple(PROMPT[:20]), 0, scattered(PAGES, 2, 7), None)
    together = one.step([*items, filling])
    assert together.tokens[2] == 9 and together.tokens[4] is None
    assert [told is None for told in together.logprobs] == [False, False, True, True, True]
    first = together.logprobs[0]
    assert first is not None and first.top_ids[0] == together.tokens[0]
    exact = torch.from_numpy(last_logits(checkpoint, PROMPT)).double().log_softmax(-1)
    for told, token in zip(together.logprobs[:2], together.tokens, strict=False):
        assert told is not None and token is not None
        assert abs(told.logprob - float(exact[token])) < 1e-3
    for item, token in zip(items, together.tokens, strict=False):
        assert one.step([item]).tokens == (token,)


def test_identity(checkpoint: Checkpoint) -> None:
    one = engine(checkpoint)
    assert (one.vocab_size, one.context_tokens) == (512, 512)
    assert one.model_digest == checkpoint.digest
    assert one.layout_digest != engine(checkpoint, "bfloat16").layout_digest
    assert (one.memory.pages, one.memory.page_bytes) == (PAGES, 2 * 2 * 2 * 16 * 16 * 4)


def test_bounds_and_empty_steps(checkpoint: Checkpoint) -> None:
    one = engine(checkpoint)
    assert one.step([]).tokens == ()
    for item in (StepItem((512,), 0, table(0), None), StepItem((1,), 16, table(0), None)):
        with pytest.raises(EngineError):
            one.step([item])


def test_not_finite_logits_are_an_error(checkpoint: Checkpoint) -> None:
    one, pages = engine(checkpoint), table(*range(8))
    first = prefill(one, PROMPT, pages)
    one.memory.run(PageId(3), 1)[:] = 0xFF
    with pytest.raises(EngineError, match="finite"):
        one.step([StepItem((first,), 120, pages, Draw(0.0, 1.0, 0, 1))])
    assert prefill(one, PROMPT, pages) == first


def test_costs_are_positive(checkpoint: Checkpoint) -> None:
    cost = measure_costs(engine(checkpoint), BLOCK)
    assert cost.decode_step_s > 0
    assert cost.step_s + 32 * cost.token_s + 32**2 * cost.pair_s > 0


@pytest.mark.parametrize(
    ("device", "dtype", "word"),
    [("tpu", "float32", "tpu"), ("meta", "float32", "meta"), ("cpu", "int4", "int4")],
)
def test_building_refuses(checkpoint: Checkpoint, device: str, dtype: str, word: str) -> None:
    with pytest.raises(StartupError, match=word):
        build_engine(checkpoint, device, dtype, PAGES, BLOCK, "torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_cuda_without_a_gpu_is_one_clear_line(checkpoint: Checkpoint) -> None:
    with pytest.raises(StartupError, match="no CUDA GPU"):
        build_engine(checkpoint, "cuda", "float32", PAGES, BLOCK, "torch")
