"""Every storage type that GGUF tensors may have, against a reading of one value at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from shared.checkpoint.families import BY_GGUF_NAME
from shared.checkpoint.gguf_file import GgufTensors
from shared.checkpoint.gguf_header import STORAGE, read_header
from shared.errors import CheckpointError

from .block_formats import BLOCKS
from .files import tiny_spec

ROWS, COLUMNS = 3, 512


def raw_rows(storage: str, seed: int) -> np.ndarray:
    """Random blocks whose float16 fields are finite."""
    values, size, _ = BLOCKS[storage]
    blocks = np.random.default_rng(seed).integers(0, 256, (ROWS * COLUMNS // values, size))
    # The exponents of all float16 (and bfloat16) fields stay small.
    for at in {"Q6_K": (208,), "F16": (0,), "BF16": (0,)}.get(storage, (0, 2)):
        if at + 1 < size and not (storage in ("Q4_0", "Q5_0", "Q8_0") and at == 2):
            blocks[:, at + 1] = blocks[:, at + 1] & 0x83 | 0x24
    return blocks.astype(np.uint8).reshape(ROWS, -1)


def stored(path: Path, storage: str, raw: np.ndarray) -> GgufTensors:
    writer = GGUFWriter(str(path), "qwen2")
    writer.add_tensor("output_norm.weight", raw, raw_dtype=GGMLQuantizationType[storage])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    names = {"norm": "output_norm.weight"}
    return GgufTensors(path, read_header(path), tiny_spec(), BY_GGUF_NAME["qwen2"], names)


def test_every_supported_type_has_a_reading() -> None:
    assert {name for name, _, _ in STORAGE.values()} == {"F32", *BLOCKS}
    for number, (name, values, size) in STORAGE.items():
        assert GGMLQuantizationType[name] == number
        if name in BLOCKS:
            assert BLOCKS[name][:2] == (values, size)


@pytest.mark.parametrize("storage", BLOCKS)
def test_blocks_are_read_as_documented(tmp_path: Path, storage: str) -> None:
    _, size, read = BLOCKS[storage]
    raw = raw_rows(storage, seed=len(storage))
    blocks = [bytes(block) for block in raw.reshape(-1, size)]
    expected = np.array([read(block) for block in blocks]).reshape(ROWS, COLUMNS)
    found = stored(tmp_path / "m.gguf", storage, raw).read("norm")
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


def test_an_unknown_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'output_norm.weight' is stored as ggml type 16"):
        stored(tmp_path / "m.gguf", "IQ2_XXS", np.zeros((1, 66), dtype=np.uint8))
