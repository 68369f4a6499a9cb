"""The built-in model: bytes as tokens, equal in every process."""

from __future__ import annotations

import pytest

from shared.checkpoint import open_checkpoint
from shared.checkpoint.geometry import page_layout
from shared.errors import CheckpointError, StartupError


def test_every_text_is_its_bytes() -> None:
    tokenizer = open_checkpoint("hashchain").tokenizer()
    text = "héj \n\t\x00 日本 🙂"
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.get_vocab_size() == 512


def test_control_tokens() -> None:
    checkpoint = open_checkpoint("hashchain")
    tokenizer = checkpoint.tokenizer()
    assert tokenizer.encode("<|im_start|>a<|im_end|>").ids == [256, 97, 257]
    assert checkpoint.eos_ids == (257, 258)
    assert "<|im_start|>" in checkpoint.chat_template


def test_digests_are_stable() -> None:
    first, second = open_checkpoint("hashchain"), open_checkpoint("hashchain")
    assert (first.digest, first.tokenizer_digest) == (second.digest, second.tokenizer_digest)
    assert first.digest.startswith("7498a635")


def test_pages_are_float32_whatever_is_asked() -> None:
    layout = page_layout(open_checkpoint("hashchain"), "bfloat16", 16)
    assert (layout.page_bytes, layout.dtype) == (4_096, "float32")


def test_no_weights_no_model_no_dtype() -> None:
    checkpoint = open_checkpoint("hashchain")
    with pytest.raises(CheckpointError, match="no weights"):
        checkpoint.tensors.read("embed")
    with pytest.raises(CheckpointError, match="no model given"):
        open_checkpoint("")
    with pytest.raises(StartupError, match="float12"):
        page_layout(checkpoint, "float12", 16)
