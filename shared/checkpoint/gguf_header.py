"""Reads a GGUF file's header: metadata and the tensor table, every count bounded first.

    magic | version | tensors | pairs | pairs… | tensor table… | padding | tensor bytes
Owns bounds, not meaning: which keys and tensors a model needs is decided elsewhere.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.errors import CheckpointError

Value = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

MAX_TENSORS: Final = 1 << 16
MAX_PAIRS: Final = 1 << 12
MAX_STRING_BYTES: Final = 1 << 20
MAX_ARRAY: Final = 1 << 22
MAX_DIMENSIONS: Final = 4

_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING: Final = 8
_ARRAY: Final = 9
# ggml type number -> (name, elements per block, bytes per block)
STORAGE: Final = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One row of the tensor table. `shape` is slowest dimension first."""

    shape: tuple[int, ...]
    storage: int
    offset: int
    """Bytes from the start of the file."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What stands before the tensor bytes."""

    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]


def read_header(path: Path) -> GgufHeader:
    """Parse and bound the header. Raises CheckpointError with one line naming the file."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise CheckpointError(f"{path}: too short to be a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Reader(view).header()
    except OSError as error:
        raise CheckpointError(f"cannot read model file {path}: {error.strerror}") from error
    except CheckpointError as error:
        message = error.message
        raise CheckpointError(
            message if message.startswith(str(path)) else f"{path}: {message}"
        ) from error


class _Reader:
    """A cursor over the header that refuses to run past the end of the file."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = 0

    def header(self) -> GgufHeader:
        if self._view[:4] != b"GGUF":
            raise CheckpointError("not a GGUF file (wrong magic)")
        self._at = 4
        version = int(self._scalar("<I"))
        if version not in (2, 3):
            raise CheckpointError(f"GGUF version {version} is not supported (2 or 3)")
        tensor_count = self._count("tensor count", MAX_TENSORS)
        pair_count = self._count("metadata count", MAX_PAIRS)
        metadata: dict[str, Value] = {}
        for _ in range(pair_count):
            key = self._string()
            if key in metadata:
                raise CheckpointError(f"metadata key {key!r} stands twice")
            metadata[key] = self._value(int(self._scalar("<I")))
        return GgufHeader(metadata, self._table(tensor_count, _alignment(metadata)))

    def _table(self, count: int, alignment: int) -> dict[str, StoredTensor]:
        rows = [self._row() for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, storage, offset in rows:
            if name in tensors:
                raise CheckpointError(f"tensor {name!r} stands twice")
            tensors[name] = self._placed(name, shape, storage, start, offset, alignment)
        return tensors

    def _row(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = int(self._scalar("<I"))
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise CheckpointError(f"tensor {name!r} has {dimensions} dimensions; expected 1..4")
        fastest_first = [int(self._scalar("<Q")) for _ in range(dimensions)]
        return (
            name,
            tuple(reversed(fastest_first)),
            int(self._scalar("<I")),
            int(self._scalar("<Q")),
        )

    def _placed(
        self, name: str, shape: tuple[int, ...], storage: int, start: int, offset: int, align: int
    ) -> StoredTensor:
        if storage not in STORAGE:
            kinds = ", ".join(kind for kind, _, _ in STORAGE.values())
            raise CheckpointError(
                f"tensor {name!r} is stored as ggml type {storage}; supported are {kinds}"
            )
        elements = 1
        for size in shape:
            elements *= size
        _, block, block_bytes = STORAGE[storage]
        if elements < 1 or shape[-1] % block:
            raise CheckpointError(f"tensor {name!r} has shape {list(shape)} in blocks of {block}")
        size_bytes = elements // block * block_bytes
        if offset % align or start + offset + size_bytes > len(self._view):
            raise CheckpointError(
                f"tensor {name!r} reaches beyond the end of the file (truncated download?)"
            )
        return StoredTensor(shape, storage, start + offset, size_bytes)

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise CheckpointError(f"metadata value type {kind} is unknown")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> Value:
        kind = int(self._scalar("<I"))
        count = self._count("array length", MAX_ARRAY)
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind not in _SCALARS:
            raise CheckpointError(f"metadata array of type {kind} is not supported")
        code = _SCALARS[kind]
        raw = self._take(count * struct.calcsize(code))
        return list(struct.unpack(f"<{count}{code[1]}", raw))

    def _string(self) -> str:
        raw = self._take(self._count("string length", MAX_STRING_BYTES))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError("metadata text is not UTF-8") from error

    def _count(self, what: str, limit: int) -> int:
        count = int(self._scalar("<Q"))
        if count > limit:
            raise CheckpointError(f"{what} {count} is beyond the limit of {limit}")
        return count

    def _scalar(self, code: str) -> int | float:
        value: int | float = struct.unpack(code, self._take(struct.calcsize(code)))[0]
        return value

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._view):
            raise CheckpointError("the header ends early (truncated download?)")
        raw = self._view[self._at : end]
        self._at = end
        return raw


def _alignment(metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise CheckpointError(f"alignment {alignment!r} is not a power of two in 8..65536")
    return alignment
