"""Reads safetensors files: a JSON table of contents, then raw tensors. All bounds checked.

8 bytes: table length | table (JSON) | tensor bytes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from shared.errors import CheckpointError

_MAX_TABLE_BYTES: Final = 64 << 20
_ELEMENT_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies. Types we do not read are listed, and refused when read."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def read_table(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file. Raises CheckpointError with one line naming the file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            table_bytes = int.from_bytes(file.read(8), "little")
            if size < 8 or table_bytes > min(size - 8, _MAX_TABLE_BYTES):
                raise CheckpointError(f"{path}: not a safetensors file, or truncated")
            table = orjson.loads(file.read(table_bytes))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{path}: the table of contents is not JSON") from error
    if not isinstance(table, dict):
        raise CheckpointError(f"{path}: the table of contents is not an object")
    start = 8 + table_bytes
    return {
        name: _stored(path, name, row, start, size)
        for name, row in table.items()
        if name != "__metadata__"
    }


def read_tensor(stored: StoredTensor) -> NDArray[np.float32]:
    """A fresh float32 array. Raises CheckpointError."""
    if stored.dtype not in _ELEMENT_BYTES:
        known = ", ".join(_ELEMENT_BYTES)
        raise CheckpointError(
            f"{stored.path}: tensor {stored.name!r} is of type {stored.dtype} ({known} are read)"
        )
    try:
        raw = np.fromfile(stored.path, np.uint8, stored.size_bytes, offset=stored.offset)
    except OSError as error:
        raise CheckpointError(f"cannot read {stored.path}: {error.strerror}") from error
    if raw.size != stored.size_bytes:
        raise CheckpointError(f"{stored.path}: tensor {stored.name!r} was cut while it was read")
    return _widened(raw, stored.dtype).reshape(stored.shape)


def _widened(raw: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    if dtype == "F32":
        return raw.view(np.dtype("<f4")).astype(np.float32, copy=False)
    if dtype == "F16":
        return raw.view(np.dtype("<f2")).astype(np.float32)
    high = raw.view(np.dtype("<u2")).astype(np.uint32) << 16
    return high.view(np.float32)


def _stored(path: Path, name: str, row: object, start: int, size: int) -> StoredTensor:
    refused = CheckpointError(f"{path}: tensor {name!r} has a damaged entry")
    if not isinstance(row, Mapping):
        raise refused
    dtype = row.get("dtype")
    shape, ends = _naturals(row.get("shape")), _naturals(row.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or ends is None:
        raise refused
    if len(ends) != 2 or ends[1] < ends[0]:
        raise refused
    length = ends[1] - ends[0]
    elements = 1
    for extent in shape:
        elements *= extent
    if dtype in _ELEMENT_BYTES and elements * _ELEMENT_BYTES[dtype] != length:
        raise refused
    if start + ends[1] > size:
        raise CheckpointError(f"{path}: tensor {name!r} reaches beyond the end (truncated?)")
    return StoredTensor(path, name, dtype, shape, start + ends[0], length)


def _naturals(value: object) -> tuple[int, ...] | None:
    """At most eight whole numbers >= 0, or None."""
    if not isinstance(value, list) or len(value) > 8:
        return None
    numbers = tuple(item for item in value if type(item) is int and item >= 0)
    return numbers if len(numbers) == len(value) else None
