"""Layers run in one call give the same bits as their operations one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.checkpoint import Checkpoint, open_checkpoint
from shared.engine.batch import Draw, StepItem
from shared.engine.native.layers import plain
from shared.engine.native.library import native

from ..checkpoint.files import tiny_spec, write_folder
from .model_bench import Bench, bench
from .sequences import pages_for, scattered

ONE = Draw(0.0, 1.0, 0, 0)
LONG = 300


def tiny(path: Path) -> Checkpoint:
    return open_checkpoint(str(write_folder(path, tiny_spec(layers=3, context=1024))))


def logits(one: Bench) -> torch.Tensor:
    """A long prompt in two chunks, then its next step beside a new sequence."""
    pages = scattered(64, pages_for(LONG + 1) + 1, 3)
    long, other = pages[:-1], pages[-1:]
    tokens = tuple((37 * index + 5) % 512 for index in range(LONG))
    one.logits([StepItem(tokens[:270], 0, long, None)])
    first = one.logits([StepItem(tokens[270:], 270, long, ONE)])
    both = [StepItem((9,), LONG, long, ONE), StepItem((7, 8, 3), 0, other, ONE)]
    return torch.cat([first, one.logits(both)])


@pytest.mark.skipif(native().functions is None, reason=f"no library: {native().reason}")
def test_one_call_is_the_same_bits(tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path)
    together, apart = bench(checkpoint, compiled=True), bench(checkpoint, compiled=True)
    assert together.model._plain is not None
    apart.model._plain = None
    assert torch.equal(logits(together), logits(apart))


def test_more_than_the_plain_form_is_left_out(tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path)
    spec, layers = checkpoint.spec, bench(checkpoint).model._weights.layers
    extra = torch.ones(1)
    assert plain(spec, layers)
    assert not plain(replace(spec, activation="gelu_tanh"), layers)
    for name in ("qkv_bias", "q_norm", "attn_post_norm"):
        assert not plain(spec, [*layers[:-1], replace(layers[-1], **{name: extra})])
