"""Opens a GGUF file: shape, text side and dequantised tensors, one at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.families import Family, gguf_names
from shared.checkpoint.fingerprint import digest_files
from shared.checkpoint.finite import check_finite
from shared.checkpoint.gguf_config import read_family, read_spec
from shared.checkpoint.gguf_header import GgufHeader, StoredTensor, read_header
from shared.checkpoint.gguf_text import text_side
from shared.checkpoint.spec import ModelSpec
from shared.checkpoint.stored_blocks import BLOCK_BYTES, StoredBlocks
from shared.checkpoint.tensors import check_tensors
from shared.errors import CheckpointError

Cell = TypeVar("Cell", np.float32, np.uint8)
ROPE_FACTORS = "rope_freqs.weight"


def open_gguf(path: Path) -> Checkpoint:
    """Read the header and check that the model is complete and of our kind."""
    header = read_header(path)
    try:
        family = read_family(header)
        spec = read_spec(header, family)
        names = gguf_names(spec)
        shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
        check_tensors(spec, shapes, names, str(path))
        text = text_side(header.metadata, spec.vocab)
    except CheckpointError as error:
        if error.message.startswith(str(path)):
            raise
        raise CheckpointError(f"{path}: {error.message}") from error
    return Checkpoint(
        name=path.stem,
        path=str(path.resolve()),
        backend="torch",
        spec=spec,
        text=text,
        tensors=GgufTensors(path, header, spec, family, names),
        fingerprint=partial(digest_files, [path]),
    )


class GgufTensors:
    """Dequantises tensors from the file, one at a time."""

    def __init__(
        self,
        path: Path,
        header: GgufHeader,
        spec: ModelSpec,
        family: Family,
        names: dict[str, str],
    ) -> None:
        self._path = path
        self._stored = header.tensors
        self._spec = spec
        self._paired = family.paired_rows
        self._names = names | {"rope_factors": ROPE_FACTORS}

    def has(self, name: str) -> bool:
        return self._names.get(name) in self._stored

    def read(self, name: str) -> NDArray[np.float32]:
        stored = self._stored.get(self._names.get(name, ""))
        if stored is None:
            raise CheckpointError(f"{self._path}: no tensor {name!r}")
        rows = self._dequantised(name, stored).reshape(stored.shape)
        check_finite(rows, f"{self._path}: tensor {self._names[name]!r}")
        part = name.rpartition(".")[2]
        if self._paired and part in ("q", "k"):
            return _halves(rows, self._spec.heads if part == "q" else self._spec.kv_heads)
        return rows

    def blocks(self, name: str) -> StoredBlocks | None:
        """See `BlockSource`."""
        stored = self._stored.get(self._names.get(name, ""))
        if stored is None or len(stored.shape) != 2:
            return None
        kind = GGMLQuantizationType(stored.storage).name.lower()
        if kind not in BLOCK_BYTES:
            return None
        try:
            rows = self._raw(stored)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self._path}: {name!r} cannot be read ({error})") from error
        part = name.rpartition(".")[2]
        if self._paired and part in ("q", "k"):
            rows = _halves(rows, self._spec.heads if part == "q" else self._spec.kv_heads)
        return StoredBlocks(kind, rows.reshape(len(rows), -1, BLOCK_BYTES[kind]))

    def _raw(self, stored: StoredTensor) -> NDArray[np.uint8]:
        raw = np.fromfile(self._path, np.uint8, stored.size_bytes, offset=stored.offset)
        return raw.reshape(stored.size_bytes // _row_bytes(stored), -1)

    def _dequantised(self, name: str, stored: StoredTensor) -> NDArray[np.float32]:
        try:
            rows = self._raw(stored)
            values = dequantize(rows, GGMLQuantizationType(stored.storage))
        except OSError as error:
            raise CheckpointError(f"cannot read {self._path}: {error.strerror}") from error
        except (ValueError, NotImplementedError) as error:
            raise CheckpointError(
                f"{self._path}: tensor {self._names[name]!r} cannot be read ({error})"
            ) from error
        return np.array(values, dtype=np.float32)


def _row_bytes(stored: StoredTensor) -> int:
    rows = 1
    for size in stored.shape[:-1]:
        rows *= size
    return stored.size_bytes // rows


def _halves(rows: NDArray[Cell], heads: int) -> NDArray[Cell]:
    """Undo GGUF's row order: stored rows (2i, 2i+1) of a head belong at (i, i + half)."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
