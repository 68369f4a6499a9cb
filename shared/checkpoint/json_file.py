"""Reads the JSON files of a model folder, typed field by field. Knows no model."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import orjson

from shared.errors import CheckpointError

Kind = TypeVar("Kind", int, float, str, bool)
Fields = dict[str, object]

_MAX_BYTES: Final = 256 << 20


def read_fields(path: Path) -> Fields:
    """The object in a JSON file. Raises CheckpointError."""
    content = read_bytes(path)
    try:
        fields = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not JSON") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return fields


def read_bytes(path: Path) -> bytes:
    """The whole file, up to 256 MiB. Raises CheckpointError."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{path} is larger than {_MAX_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def field(fields: Fields, key: str, kind: type[Kind], default: Kind | None) -> Kind:
    """A value of exactly this type (an integer may stand for a float); absent or null means
    `default`, or CheckpointError if that is None."""
    value = fields.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(f"{key} is missing")
        return default
    if kind is float and type(value) is int:
        return kind(value)
    if type(value) is not kind:
        raise CheckpointError(f"{key} is not of type {kind.__name__}")
    return value


def nested(fields: Fields, key: str) -> Fields | None:
    """An object-valued field, or None if absent or null."""
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise CheckpointError(f"{key} is not an object")
    return value
