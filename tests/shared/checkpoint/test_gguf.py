"""GGUF files: good ones give the same weights as were written, bad ones one clear line."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.checkpoint import open_checkpoint
from shared.checkpoint.tensors import tensor_shapes
from shared.errors import CheckpointError

from .files import TinyGguf, random_weights, tiny_spec


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyGguf().write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.mark.parametrize("tied", [True, False])
def test_float32_tensors_come_back_in_internal_order(tmp_path: Path, tied: bool) -> None:
    spec = tiny_spec(tied=tied)
    checkpoint = open_checkpoint(str(TinyGguf(spec=spec).write(tmp_path / "m.gguf")))
    assert checkpoint.spec == spec
    for name, values in random_weights(spec).items():
        np.testing.assert_array_equal(checkpoint.tensors.read(name), values, err_msg=name)


@pytest.mark.parametrize(
    ("storage", "tolerance"), [("F16", 1e-3), ("Q8_0", 0.02), ("Q4_0", 0.2), ("Q4_1", 0.2)]
)
def test_quantised_tensors_are_near(tmp_path: Path, storage: str, tolerance: float) -> None:
    kind = GGMLQuantizationType[storage]
    checkpoint = open_checkpoint(str(TinyGguf(storage=kind).write(tmp_path / "m.gguf")))
    for name, values in random_weights(checkpoint.spec).items():
        assert np.abs(checkpoint.tensors.read(name) - values).max() < tolerance, name


def test_text_side(tiny: Path) -> None:
    checkpoint = open_checkpoint(str(tiny))
    assert checkpoint.eos_ids == (257,)
    assert checkpoint.bos_id is None
    assert checkpoint.eos_token == "<|im_end|>"
    assert checkpoint.special_tokens["<|im_start|>"] == 256
    assert checkpoint.tokenizer().encode("hé ab<|im_end|>").ids == [104, 195, 169, 32, 510, 257]


def test_digest_follows_content_not_name(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    same, other = tmp_path / "same.gguf", tmp_path / "other.gguf"
    same.write_bytes(content)
    other.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    digest = open_checkpoint(str(tiny)).digest
    assert len(digest) == 64
    assert open_checkpoint(str(same)).digest == digest
    assert open_checkpoint(str(other)).digest != digest


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"architecture": "bert"}, "architecture 'bert'"),
        ({"dropped": ("layers.1.q",)}, "blk.1.attn_q.weight"),
        ({"pre": "klingon"}, "pre-tokenizer 'klingon'"),
        ({"extra": {"llama.expert_count": 8}}, "mixture-of-experts"),
        ({"extra": {"llama.rope.dimension_count": 8}}, "partial rotary"),
        ({"extra": {"llama.rope.scaling.type": "su"}}, "rope scaling 'su'"),
        ({"extra": {"split.count": 3}}, "split GGUF"),
    ],
)
def test_models_we_do_not_run(tmp_path: Path, change: dict[str, object], word: str) -> None:
    path = TinyGguf(**change).write(tmp_path / "m.gguf")  # type: ignore[arg-type]
    _refused(path, word)


def test_not_there_not_gguf_and_cut(tiny: Path, tmp_path: Path) -> None:
    _refused(tmp_path / "none.gguf", "does not exist")
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"PK\x03\x04" + bytes(100))
    _refused(wrong, "wrong magic")
    content = tiny.read_bytes()
    for kept in (3, 30, 2_000, len(content) // 2, len(content) - 40):
        wrong.write_bytes(content[:kept])
        _refused(wrong, "")


@pytest.mark.parametrize(("at", "what"), [(8, "tensor count"), (16, "metadata count")])
def test_absurd_counts_are_refused_before_reading(
    tiny: Path, tmp_path: Path, at: int, what: str
) -> None:
    content = bytearray(tiny.read_bytes())
    struct.pack_into("<Q", content, at, 1 << 62)
    path = tmp_path / "absurd.gguf"
    path.write_bytes(content)
    _refused(path, what)


@settings(
    max_examples=150, deadline=2_000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_headers_open_or_are_refused(
    tiny: Path, tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(tiny.read_bytes())
    for at, value in changes:
        content[at] = value
    path = tmp_path / "mutated.gguf"
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(str(path))
        checkpoint.tokenizer()
        for name in tensor_shapes(checkpoint.spec):
            checkpoint.tensors.read(name)
    except CheckpointError as error:
        assert "\n" not in error.message


def _refused(path: Path, word: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(str(path))
    assert word in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
