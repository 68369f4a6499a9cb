"""Rows as one Parquet file: flat columns, one row group per 100,000 rows, plain encoding, gzip.

Only what that needs of the format (parquet-format 2.x: thrift compact protocol, data pages v1,
definition levels for absent values) is here, so that no library of 40 MB is. See ADR 30.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from loadgen.reports.run_files import Rows

_MAGIC: Final = b"PAR1"
_GROUP_ROWS: Final = 100_000
_INT64, _DOUBLE, _BYTES = 2, 5, 6
_PLAIN, _RLE = 0, 3
_GZIP: Final = 2
_OPTIONAL: Final = 1
_UTF8: Final = 0
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_WHOLE: Final = frozenset(
    ("number", "group", "chunks", "prompt_tokens", "cached_tokens", "output_tokens", "step",
     "turn", "wanted_prompt_tokens", "wanted_output_tokens")
)  # fmt: skip

Field = tuple[int, int, Any]
"""(field number, thrift type, value)."""


@dataclass(frozen=True, slots=True)
class _Column:
    """`values` of one type; `there` says which are not absent."""

    name: str
    kind: int
    values: npt.NDArray[Any]
    there: npt.NDArray[np.bool_]


def write(path: Path, rows: Rows) -> None:
    """Whole or not at all. Raises OSError."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("wb") as file:
            _write(file, list(_columns(rows)), len(rows))
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _columns(rows: Rows) -> Iterator[_Column]:
    for name, numbers in rows.numbers.items():
        there = ~np.isnan(numbers)
        if name in _WHOLE:
            whole = np.where(there, numbers, 0).astype(np.int64)
            yield _Column(name, _INT64, whole, there)
        else:
            yield _Column(name, _DOUBLE, numbers, there)
    strings: dict[str, npt.NDArray[Any]] = {**rows.words, **rows.marks}
    for name, texts in strings.items():
        yield _Column(name, _BYTES, texts, texts != texts.dtype.type())


def _write(file: BinaryIO, columns: Sequence[_Column], count: int) -> None:
    file.write(_MAGIC)
    groups = []
    for first in range(0, max(count, 1), _GROUP_ROWS):
        part = slice(first, min(first + _GROUP_ROWS, count))
        chunks = [_chunk(file, column, part) for column in columns]
        size = sum(chunk[1] for chunk in chunks)
        groups.append(
            [
                (1, _LIST, (_STRUCT, [chunk[0] for chunk in chunks])),
                (2, _I64, size),
                (3, _I64, part.stop - part.start),
            ]
        )
    schema = [
        [(4, _BINARY, b"requests"), (5, _I32, len(columns))],
        *(
            [
                (1, _I32, column.kind),
                (3, _I32, _OPTIONAL),
                (4, _BINARY, column.name.encode()),
                *([(6, _I32, _UTF8)] if column.kind == _BYTES else []),
            ]
            for column in columns
        ),
    ]
    footer = _struct(
        [
            (1, _I32, 2),
            (2, _LIST, (_STRUCT, schema)),
            (3, _I64, count),
            (4, _LIST, (_STRUCT, groups)),
            (6, _BINARY, b"baton loadgen"),
        ]
    )
    file.write(footer + struct.pack("<I", len(footer)) + _MAGIC)


def _chunk(file: BinaryIO, column: _Column, part: slice) -> tuple[list[Field], int]:
    """One column of one group, as one page. Returns its description and its size."""
    there, values = column.there[part], column.values[part]
    content = _levels(there) + _plain(column.kind, values[there])
    packed = gzip.compress(content, 6, mtime=0)
    header = _struct(
        [
            (1, _I32, 0),
            (2, _I32, len(content)),
            (3, _I32, len(packed)),
            (
                5,
                _STRUCT,
                [(1, _I32, len(there)), (2, _I32, _PLAIN), (3, _I32, _RLE), (4, _I32, _RLE)],
            ),
        ]
    )
    at = file.tell()
    file.write(header + packed)
    size = len(header) + len(packed)
    described: list[Field] = [
        (1, _I32, column.kind),
        (2, _LIST, (_I32, [_PLAIN, _RLE])),
        (3, _LIST, (_BINARY, [column.name.encode()])),
        (4, _I32, _GZIP),
        (5, _I64, len(there)),
        (6, _I64, len(header) + len(content)),
        (7, _I64, size),
        (9, _I64, at),
    ]
    return [(2, _I64, at), (3, _STRUCT, described)], size


def _levels(there: npt.NDArray[np.bool_]) -> bytes:
    """Definition levels 0 and 1: one bit-packed run, with its length in front."""
    bits = np.packbits(there, bitorder="little").tobytes()
    run = _varint(len(bits) << 1 | 1) + bits
    return struct.pack("<I", len(run)) + run


def _plain(kind: int, values: npt.NDArray[Any]) -> bytes:
    if kind == _INT64:
        return values.astype("<i8").tobytes()
    if kind == _DOUBLE:
        return values.astype("<f8").tobytes()
    texts = (text if isinstance(text, bytes) else text.encode() for text in values.tolist())
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


# -- thrift, compact -------------------------------------------------------------------------------


def _struct(fields: Sequence[Field]) -> bytes:
    """Fields in rising order of number, none further than 15 from the one before."""
    parts, last = [], 0
    for number, kind, value in fields:
        parts.append(bytes([(number - last) << 4 | kind]) + _value(kind, value))
        last = number
    return b"".join(parts) + b"\x00"


def _value(kind: int, value: Any) -> bytes:
    if kind in (_I32, _I64):
        return _varint(value << 1 ^ value >> 63)
    if kind == _BINARY:
        return _varint(len(value)) + bytes(value)
    if kind == _STRUCT:
        return _struct(value)
    inner, items = value
    size = bytes([len(items) << 4 | inner]) if len(items) < 15 else b""
    size = size or bytes([0xF0 | inner]) + _varint(len(items))
    return size + b"".join(_value(inner, item) for item in items)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
