"""The same engine on a GPU: tokens as on the CPU, pages visible to others. Needs one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shared.checkpoint import Checkpoint, open_checkpoint
from shared.engine.batch import Draw, Engine, StepItem
from shared.engine.building import EngineOptions, build_engine
from shared.engine.parallel import ParallelEngine
from shared.engine.runner import TorchEngine
from tests.golden.cases import SUBSET, GoldenCase, load

from ..checkpoint.files import tiny_spec, write_folder
from ..checkpoint.tiny_families import write_safetensors
from .sequences import BLOCK, decode, pages_for, prefill, scattered
from .test_families import FAMILIES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
PAGES = 64
PROMPT = [(31 * index + 7) % 512 for index in range(300)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(write_folder(tmp_path_factory.mktemp("hf"), tiny_spec())))


def run(engine: Engine, prompt: list[int], count: int, seed: int | None = None) -> list[int]:
    pages = scattered(PAGES, pages_for(len(prompt) + count), 4)
    first = prefill(engine, prompt, pages, seed=seed)
    return decode(engine, len(prompt), first, pages, count)


def test_tokens_equal_the_cpu(checkpoint: Checkpoint) -> None:
    host = build_engine(checkpoint, "cpu", "float32", PAGES, BLOCK, "torch")
    device = build_engine(checkpoint, "cuda", "float32", PAGES, BLOCK, "torch")
    assert run(device, PROMPT, 12) == run(host, PROMPT, 12)
    assert run(device, PROMPT, 12, seed=5) == run(host, PROMPT, 12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fused_step_gives_the_same_bits(checkpoint: Checkpoint, dtype: str) -> None:
    """And the costs that choose it are measured at start where that can pay."""
    from shared.engine.device_kernels import DeviceKernels

    one = build_engine(checkpoint, "cuda", dtype, PAGES, BLOCK, "torch")
    assert isinstance(one, TorchEngine) and isinstance(one._kernels, DeviceKernels)
    assert (one._kernels._fusing.costs is None) == (dtype == "float32")
    places = scattered(PAGES, 40, 4)
    prefill(one, PROMPT[:200], places[:20])
    prefill(one, PROMPT[:120], places[20:])
    items = [
        StepItem((5,), 200, places[:20], Draw(0.0, 1.0, 0, 0)),
        StepItem(tuple(PROMPT[120:200]), 120, places[20:], Draw(0.0, 1.0, 0, 0)),
    ]
    one._kernels = DeviceKernels(one._kv, one._rules, "never")
    serial = one.logits(items)
    one._kernels = DeviceKernels(one._kv, one._rules, "always")
    assert torch.equal(one.logits(items), serial)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_and_pages_match_their_checksums(
    checkpoint: Checkpoint, dtype: str
) -> None:
    device = build_engine(checkpoint, "cuda", dtype, PAGES, BLOCK, "torch")
    tokens = run(device, PROMPT, 12)
    assert all(0 <= token < 512 for token in tokens)
    pages = scattered(PAGES, 40, 4)
    sums = device.checksums(pages)
    assert len(set(sums)) > 10
    for page in pages[:3]:
        view = device.memory.run(page, 1)
        assert view.__cuda_array_interface__["shape"] == (device.memory.page_bytes,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_decode_steps_give_the_same_tokens(checkpoint: Checkpoint, dtype: str) -> None:
    """One sequence alone, then three of different lengths padded to a batch of four."""
    plain = build_engine(checkpoint, "cuda", dtype, PAGES, BLOCK, "torch")
    recorded = build_engine(
        checkpoint, "cuda", dtype, PAGES, BLOCK, "torch", EngineOptions(graph_sequences=4)
    )
    assert isinstance(recorded, TorchEngine) and recorded.record_graphs(4) == 3
    assert run(recorded, PROMPT, 12) == run(plain, PROMPT, 12)
    drawn = []
    for engine in (plain, recorded):
        places = scattered(PAGES, 3 * 16, 4)
        tokens, lengths, tables = [], [200, 31, 17], []
        for number, length in enumerate(lengths):
            tables.append(places[16 * number : 16 * number + 16])
            tokens.append(prefill(engine, PROMPT[:length], tables[-1]))
        for step in range(8):
            items = [
                StepItem((token,), length + step, own, Draw(0.0, 1.0, 0, step))
                for token, length, own in zip(tokens, lengths, tables, strict=True)
            ]
            tokens = [token for token in engine.step(items).tokens if token is not None]
            drawn.append(tokens)
    assert drawn[:8] == drawn[8:]


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
def test_windows_and_caps_are_recorded_and_give_the_tokens_of_the_cpu(
    name: str, tmp_path: Path
) -> None:
    tiny = open_checkpoint(str(write_safetensors(tmp_path / "tiny", FAMILIES[name])))
    host = build_engine(tiny, "cpu", "float32", PAGES, BLOCK, "torch")
    device = build_engine(tiny, "cuda", "float32", PAGES, BLOCK, "torch")
    assert isinstance(device, TorchEngine) and device.record_graphs(1) == 1
    for length in (20, 120):
        assert run(device, PROMPT[:length], 24) == run(host, PROMPT[:length], 24)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two CUDA GPUs here")
def test_two_ranks_record_their_sums_and_give_the_tokens_of_one(checkpoint: Checkpoint) -> None:
    one = build_engine(checkpoint, "cuda", "float32", PAGES, BLOCK, "torch")
    wanted = run(one, PROMPT, 12)
    options = EngineOptions(ranks=2)
    two = build_engine(checkpoint, "cuda", "float32", PAGES, BLOCK, "torch", options)
    assert isinstance(two, ParallelEngine)
    try:
        assert run(two, PROMPT, 12) == wanted
        assert two.record_graphs(2) == 2
        assert run(two, PROMPT, 12) == wanted
    finally:
        two.close()


@pytest.mark.model
@pytest.mark.parametrize("case", load(SUBSET), ids=lambda case: case.name)
def test_golden_float32(model_path: str, case: GoldenCase) -> None:
    device = build_engine(open_checkpoint(model_path), "cuda", "float32", PAGES, BLOCK, "torch")
    pages = scattered(PAGES, pages_for(len(case.prompt) + 48), 1)
    first = prefill(device, case.prompt, pages)
    tokens = decode(device, len(case.prompt), first, pages, len(case.greedy), stop=2)
    assert case.agrees(tokens)
