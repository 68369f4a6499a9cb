"""The torch engine as workers see it: tokens over steps, pages handed over, refusals."""

from __future__ import annotations

import pytest
import torch

from shared.checkpoint import Checkpoint, open_checkpoint
from shared.engine.batch import Draw, Engine, StepItem
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
