"""Logits of the torch model against a second, plain implementation, over odd shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shared.checkpoint import Checkpoint, open_checkpoint
from shared.engine.batch import Draw, StepItem
from shared.engine.operations import project

from ..checkpoint.files import TinyGguf, tiny_spec, write_folder
from .model_bench import PAGES, bench
from .reference_model import last_logits
from .sequences import chunks, pages_for, scattered

ONE = Draw(0.0, 1.0, 0, 0)


def folder(path: Path, **changes: object) -> Checkpoint:
    config = {"rope_scaling": changes.pop("rope_scaling")} if "rope_scaling" in changes else {}
    return open_checkpoint(str(write_folder(path, tiny_spec(**changes), **config)))  # type: ignore[arg-type]


def prompt(length: int) -> list[int]:
    return [(31 * index + 7) % 512 for index in range(length)]


SHAPES = {
    "plain": {},
    "untied": {"tied": False},
    "no grouping": {"heads": 3, "kv_heads": 3},
    "one kv head": {"heads": 6, "kv_heads": 1},
    "wide heads": {"heads": 2, "kv_heads": 1, "head_dim": 96},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 256,
        }
    },
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("length", [1, 16, 150])
def test_logits_match(tmp_path: Path, shape: dict[str, object], length: int) -> None:
    one = bench(folder(tmp_path, **shape))
    pages = scattered(PAGES, pages_for(length))
    (found,) = one.logits([StepItem(tuple(prompt(length)), 0, pages, ONE)])
    np.testing.assert_allclose(found, last_logits(one.checkpoint, prompt(length)), atol=2e-4)


def test_gguf_weights_give_the_same_logits(tmp_path: Path) -> None:
    pages = scattered(PAGES, 4)
    item = StepItem(tuple(prompt(50)), 0, pages, ONE)
    ours = bench(open_checkpoint(str(TinyGguf().write(tmp_path / "m.gguf")))).logits([item])
    theirs = bench(folder(tmp_path / "hf")).logits([item])
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("seed", range(4))
def test_chunks_placement_and_single_tokens_do_not_matter(tmp_path: Path, seed: int) -> None:
    one, tokens = bench(folder(tmp_path)), prompt(333)
    pages = scattered(PAGES, pages_for(len(tokens)), seed)
    for start, end in chunks(300, seed):
        one.logits([StepItem(tuple(tokens[start:end]), start, pages, None)])
    for position in range(300, 333):
        (found,) = one.logits([StepItem((tokens[position],), position, pages, ONE)])
    np.testing.assert_allclose(found, last_logits(one.checkpoint, tokens), atol=2e-4)


def test_mixed_batch_equals_each_alone(tmp_path: Path) -> None:
    one = bench(folder(tmp_path))
    lengths = [1, 5, 15, 16, 17, 40, 200, 210, 33]
    pages = iter(scattered(PAGES, PAGES))
    items, expected = [], []
    for number, length in enumerate(lengths):
        tokens = [(token + number) % 512 for token in prompt(length)]
        table = tuple(next(pages) for _ in range(pages_for(length)))
        kept = length - 1 if number % 3 else length // 2
        if kept:
            one.logits([StepItem(tuple(tokens[:kept]), 0, table, None)])
        draw = ONE if number != 5 else None
        items.append(StepItem(tuple(tokens[kept:]), kept, table, draw))
        if draw:
            expected.append(last_logits(one.checkpoint, tokens))
    np.testing.assert_allclose(one.logits(items), np.stack(expected), atol=2e-4)


def test_no_draw_gives_no_logits(tmp_path: Path) -> None:
    one = bench(folder(tmp_path))
    item = StepItem(tuple(prompt(20)), 0, scattered(PAGES, 2), None)
    assert one.logits([item]).shape == (0, 512)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.6), ("float16", 0.08)])
def test_half_precision_is_near(tmp_path: Path, dtype: str, tolerance: float) -> None:
    one = bench(folder(tmp_path), dtype)
    pages = scattered(PAGES, pages_for(100))
    one.logits([StepItem(tuple(prompt(99)), 0, pages, None)])
    (found,) = one.logits([StepItem((prompt(100)[99],), 99, pages, ONE)])
    expected = last_logits(one.checkpoint, prompt(100))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.parametrize("rows", [1, 2, 8, 9])
def test_project_is_a_product_either_way_round(rows: int) -> None:
    left, weight = torch.randn(rows, 32), torch.randn(48, 32)
    found = project(left, weight)
    assert found.is_contiguous()
    torch.testing.assert_close(found, left @ weight.T)
