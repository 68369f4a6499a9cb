"""Messages to bytes and back: orjson, a version, a closed registry, exact types.

A peer can only make us build one of the frozen dataclasses listed here, field by field, within
size and depth caps. Nothing is ever unpickled, evaluated or imported by name.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, Final, Protocol

import orjson

from shared.errors import WireError
from shared.wire import blocks, requests, views, workers

VERSION: Final = 1
MAX_BYTES: Final = 8 * 1024 * 1024
MAX_TEXT: Final = 4096
MAX_ITEMS: Final = 1_048_576


class Message(Protocol):
    """Any dataclass of the registry."""

    __dataclass_fields__: typing.ClassVar[dict[str, Any]]


_Read = Callable[[object], Any]

_INT_LIMIT: Final = 2**64


def _registry() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in (requests, workers, blocks, views):
        for name, value in vars(module).items():
            if dataclasses.is_dataclass(value) and value.__module__ == module.__name__:
                found[name] = typing.cast(type, value)
    return found


REGISTRY: Final[dict[str, type]] = _registry()
"""Type name -> dataclass: everything that may travel."""


def encode(message: Message) -> bytes:
    """One message as bytes. Raises WireError for a type outside the registry."""
    name = type(message).__name__
    if REGISTRY.get(name) is not type(message):
        raise WireError(f"{name} is not a wire message")
    try:
        return orjson.dumps({"v": VERSION, "t": name, "m": message})
    except (TypeError, ValueError) as error:
        raise WireError(f"{name} cannot be encoded") from error


def decode(data: bytes) -> Message:
    """Bytes back to a message. Raises WireError; the text never quotes the input."""
    if len(data) > MAX_BYTES:
        raise WireError("message is too large")
    try:
        envelope = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise WireError("message is not JSON") from error
    if not isinstance(envelope, dict) or envelope.keys() != {"v", "t", "m"}:
        raise WireError("message has no envelope")
    if envelope["v"] != VERSION or type(envelope["v"]) is not int:
        raise WireError("message has another protocol version")
    name = envelope["t"]
    read = _READERS.get(name) if isinstance(name, str) else None
    if read is None:
        raise WireError("message type is not registered")
    return typing.cast(Message, read(envelope["m"]))


# -- one reader per type, built once at import ---------------------------------------------


def _reader(kind: Any) -> _Read:
    """The strict reader for a field type. Unsupported types fail at import, not at run time."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _optional_reader(kind)
    if origin is tuple:
        return _tuple_reader(kind)
    if origin is dict:
        return _dict_reader(kind)
    if isinstance(kind, typing.NewType):
        return _reader(kind.__supertype__)
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(typing.cast(type, kind))
    readers: dict[object, _Read] = {
        int: _read_int,
        float: _read_float,
        str: _read_text,
        bool: _read_bool,
    }
    return readers[kind]


def _read_int(value: object) -> int:
    if type(value) is not int or not -_INT_LIMIT < value < _INT_LIMIT:
        raise WireError("field is not an integer")
    return value


def _read_float(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise WireError("field is not a number")
    return float(value)


def _read_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise WireError("field is not a short text")
    return value


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise WireError("field is not a truth value")
    return value


def _optional_reader(kind: Any) -> _Read:
    inner = [part for part in typing.get_args(kind) if part is not types.NoneType]
    if len(inner) != 1 or len(typing.get_args(kind)) != 2:
        raise TypeError(f"unsupported union {kind}")
    read = _reader(inner[0])
    return lambda value: None if value is None else read(value)


def _tuple_reader(kind: Any) -> _Read:
    item, ellipsis = typing.get_args(kind)
    if ellipsis is not Ellipsis:
        raise TypeError(f"unsupported tuple {kind}")
    if item is int:
        return _read_ints
    read = _reader(item)

    def read_tuple(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise WireError("field is not a list")
        return tuple([read(entry) for entry in value])

    return read_tuple


def _read_ints(value: object) -> tuple[int, ...]:
    """The hot case: token ids. One pass over types, one conversion."""
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise WireError("field is not a list")
    if not all(type(entry) is int for entry in value):
        raise WireError("field is not a list of integers")
    return tuple(value)


def _dict_reader(kind: Any) -> _Read:
    key, item = typing.get_args(kind)
    if key is not str:
        raise TypeError(f"unsupported mapping {kind}")
    read = _reader(item)

    def read_dict(value: object) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > MAX_TEXT:
            raise WireError("field is not a mapping")
        return {_read_text(name): read(entry) for name, entry in value.items()}

    return read_dict


def _dataclass_reader(kind: type) -> _Read:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def read_dataclass(value: object) -> Any:
        if not isinstance(value, dict):
            raise WireError("message body is not an object")
        if not value.keys() <= fields.keys() or not required <= value.keys():
            raise WireError("message body has unknown or missing fields")
        return kind(**{name: fields[name](entry) for name, entry in value.items()})

    return read_dataclass


_READERS: Final[dict[str, _Read]] = {
    name: _dataclass_reader(kind) for name, kind in REGISTRY.items()
}
