"""Each architecture, from both file formats, against its equations in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared.checkpoint import open_checkpoint
from shared.engine.batch import Draw, StepItem

from ..checkpoint.tiny_families import (
    VOCAB,
    TinyFamily,
    weights_of,
    write_gguf,
    write_safetensors,
)
from .family_reference import all_logits, rope_speeds
from .model_bench import PAGES, Bench, bench
from .sequences import pages_for, scattered

ONE = Draw(0.0, 1.0, 0, 0)
CHUNKS = (1, 17, 61)
DECODED = 11


def rope(**fields: object) -> TinyFamily:
    kind = fields.pop("kind")
    return TinyFamily(config={"rope_scaling": {"rope_type": kind, **fields}}, gguf_name=None)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
PLAIN = TinyFamily(config={}, gguf_name="llama").full_config
LLAMA3_FACTORS = rope_speeds(PLAIN, 8)[0] / rope_speeds(PLAIN | {"rope_scaling": LLAMA3}, 8)[0]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
GEMMA = {
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 16,
    "head_dim": 16,
    "sliding_window": 37,
}
FAMILIES = {
    "llama": TinyFamily(config={}, gguf_name="llama"),
    "llama, linear": TinyFamily(
        config={"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        gguf_name="llama",
        gguf={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama, llama3": TinyFamily(
        config={"rope_scaling": LLAMA3}, gguf_name="llama", rope_factors=tuple(LLAMA3_FACTORS)
    ),
    "llama, dynamic": rope(kind="dynamic", factor=2.0, original_max_position_embeddings=128),
    "llama, longrope": rope(
        kind="longrope",
        long_factor=[1.0 + pair for pair in range(8)],
        short_factor=[1.0] * 8,
        original_max_position_embeddings=128,
    ),
    "mistral": TinyFamily(
        config={"model_type": "mistral", "sliding_window": 37, "head_dim": 16},
        gguf_name="llama",
        gguf={"attention.sliding_window": 37},
    ),
    "qwen2, yarn": TinyFamily(
        config={
            "model_type": "qwen2",
            "tie_word_embeddings": True,
            "sliding_window": 37,
            "use_sliding_window": False,
            "max_window_layers": 1,
            "rope_scaling": YARN,
        },
        gguf_name="qwen2",
        gguf={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
    ),
    "qwen2, window in upper layers": TinyFamily(
        config={
            "model_type": "qwen2",
            "num_hidden_layers": 3,
            "sliding_window": 37,
            "use_sliding_window": True,
            "max_window_layers": 1,
        },
        gguf_name=None,
    ),
    "qwen3": TinyFamily(
        config={"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True},
        gguf_name="qwen3",
    ),
    "gemma2": TinyFamily(
        config={
            **GEMMA,
            "model_type": "gemma2",
            "num_hidden_layers": 3,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
        gguf_name="gemma2",
        gguf={
            "attention.sliding_window": 37,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": TinyFamily(
        config={
            **GEMMA,
            "model_type": "gemma3_text",
            "num_hidden_layers": 7,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10_000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        gguf_name="gemma3",
        gguf={
            "attention.sliding_window": 37,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
}
FILES = [
    (name, write)
    for name, family in FAMILIES.items()
    for write in (write_safetensors, write_gguf)
    if write is write_safetensors or family.gguf_name
]


@pytest.mark.parametrize(
    ("name", "write"), FILES, ids=[f"{name} {write.__name__[6:]}" for name, write in FILES]
)
def test_odd_chunks_then_decode_follow_the_equations(
    tmp_path: Path, name: str, write: Callable[[Path, TinyFamily], Path]
) -> None:
    family = FAMILIES[name]
    check(family, bench(open_checkpoint(str(write(tmp_path / "model", family)))))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_compiled_operations_follow_them_too(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    path = write_safetensors(tmp_path / "model", family)
    check(family, bench(open_checkpoint(str(path)), compiled=True))


def check(family: TinyFamily, one: Bench) -> None:
    """Logits at the end of every chunk and of every decoded token."""
    prompt = sum(CHUNKS)
    tokens = [(31 * index + 7) % VOCAB for index in range(prompt + DECODED)]
    config = family.full_config
    expected = all_logits(config, weights_of(config), tokens)
    pages = scattered(PAGES, pages_for(len(tokens)))
    start = 0
    for size in CHUNKS:
        item = StepItem(tuple(tokens[start : start + size]), start, pages, ONE)
        start += size
        np.testing.assert_allclose(one.logits([item])[0], expected[start - 1], atol=1e-3)
    for position in range(prompt, prompt + DECODED):
        item = StepItem((tokens[position],), position, pages, ONE)
        np.testing.assert_allclose(one.logits([item])[0], expected[position], atol=1e-3)
