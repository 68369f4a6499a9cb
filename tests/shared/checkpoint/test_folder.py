"""Hugging Face folders: single and sharded, float and bfloat16, and every way to be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shared.checkpoint import open_checkpoint
from shared.checkpoint.rope_scaling import RopeScaling
from shared.checkpoint.safetensors_file import read_table, read_tensor
from shared.errors import CheckpointError

from .files import TinyGguf, random_weights, tiny_spec, write_folder


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_come_back(tmp_path: Path, shards: int, tied: bool) -> None:
    spec = tiny_spec(tied=tied)
    checkpoint = open_checkpoint(str(write_folder(tmp_path / "tiny", spec, shards)))
    assert checkpoint.spec == spec
    assert checkpoint.name == "tiny"
    for name, values in random_weights(spec).items():
        np.testing.assert_array_equal(checkpoint.tensors.read(name), values, err_msg=name)


def test_text_side(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_folder(tmp_path, tiny_spec())))
    assert checkpoint.eos_ids == (257,)
    assert checkpoint.bos_id == 256
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert checkpoint.chat_template == "hi"
    assert checkpoint.tokenizer().encode("a<|im_end|>").ids == [97, 257]
    (tmp_path / "chat_template.jinja").write_text("own")
    again = open_checkpoint(str(tmp_path))
    assert again.chat_template == "own"
    assert again.tokenizer_digest != checkpoint.tokenizer_digest


def test_both_formats_agree(tmp_path: Path) -> None:
    folder = open_checkpoint(str(write_folder(tmp_path / "hf", tiny_spec())))
    gguf = open_checkpoint(str(TinyGguf().write(tmp_path / "m.gguf")))
    np.testing.assert_array_equal(
        folder.tensors.read("layers.1.q"), gguf.tensors.read("layers.1.q")
    )


def test_llama3_scaling_is_read(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 256}
    path = write_folder(tmp_path, tiny_spec(), rope_scaling=scaling)
    expected = RopeScaling("llama3", 8.0, 1.0, 4.0, 256)
    assert open_checkpoint(str(path)).spec.rope_scaling == expected


def test_bfloat16_and_float16_are_widened(tmp_path: Path) -> None:
    values = np.array([[1.0, -2.5], [0.15625, 3e5]], dtype=np.float32)
    high = (values.view(np.uint32) >> 16).astype(np.uint16)
    half = values[0].astype(np.float16)
    table = {
        "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "h": {"dtype": "F16", "shape": [2], "data_offsets": [8, 12]},
    }
    path = _raw(tmp_path, json.dumps(table).encode(), high.tobytes() + half.tobytes())
    stored = read_table(path)
    np.testing.assert_allclose(read_tensor(stored["b"]), values, rtol=0.01)
    np.testing.assert_array_equal(read_tensor(stored["h"]), values[0])


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"num_hidden_layers": 3}, "layers.2"),
        ({"num_hidden_layers": 10**9}, "layers"),
        ({"num_key_value_heads": 3}, "divide"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_theta": -1.0}, "rope_base"),
        ({"rms_norm_eps": 0}, "rms_eps"),
        ({"intermediate_size": 97}, "shape"),
        ({"eos_token_id": 9_999}, "9999"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope scaling 'su'"),
        ({"tie_word_embeddings": False}, "lm_head"),
    ],
)
def test_wrong_configuration(tmp_path: Path, config: dict[str, object], word: str) -> None:
    _refused(write_folder(tmp_path, tiny_spec(), **config), word)  # type: ignore[arg-type]


def test_missing_and_broken_files(tmp_path: Path) -> None:
    path = write_folder(tmp_path, tiny_spec(), shards=2)
    index = path / "model.safetensors.index.json"
    good = index.read_text()
    index.write_text(good.replace("part-1", "../part-1"))
    _refused(path, "plain file name")
    index.write_text(good)
    (path / "part-1.safetensors").unlink()
    _refused(path, "part-1.safetensors")
    index.unlink()
    _refused(path, "model.safetensors")
    (path / "config.json").write_text("{")
    _refused(path, "not JSON")
    (path / "config.json").unlink()
    _refused(path, "config.json")


@pytest.mark.parametrize(
    "row",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 7]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [1 << 62, 8], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [1 << 40, (1 << 40) + 8]},
        {"dtype": 3, "shape": [2], "data_offsets": [0, 8]},
        [],
    ],
)
def test_damaged_safetensors_tables(tmp_path: Path, row: object) -> None:
    with pytest.raises(CheckpointError):
        read_table(_raw(tmp_path, json.dumps({"x": row}).encode(), bytes(8)))


def test_absurd_table_length(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match="truncated"):
        read_table(path)


def test_broken_tokenizer(tmp_path: Path) -> None:
    path = write_folder(tmp_path, tiny_spec())
    (path / "tokenizer.json").write_text('{"added_tokens": []}')
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        open_checkpoint(str(path)).tokenizer()


def _raw(folder: Path, table: bytes, content: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(len(table).to_bytes(8, "little") + table + content)
    return path


def _refused(path: Path, word: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(str(path))
    assert word in caught.value.message
    assert "\n" not in caught.value.message
