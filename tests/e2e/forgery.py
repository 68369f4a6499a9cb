"""Bytes and messages that no honest peer would send."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from shared.wire.codec import REGISTRY, VERSION

_NUMBERS: Final = (-(2**63), -1, 0, 1, 7, 2**31, 2**63 - 1, 2**64 - 1)
_SECONDS: Final = (-1.0, 0.0, 1e-9, 0.5, 1.0)
"""Never long: what is taken in by mistake must be gone soon."""
_TEXTS: Final = (
    "",
    "nobody",
    "a.b.*",
    "../../etc/passwd",
    "\u202e\u2028\x00",
    "x" * 4096,
    "ucx://127.0.0.1:1/-/00",
    "ucx://192.0.2.1:9/-/00",
    "disaggregated",
)
_LONGEST: Final = 3


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def raw_bytes(crater: Path) -> Iterator[bytes]:
    """Not one of them is a message."""
    chance = random.Random(1)
    yield from (b"", b"\0", b"null", b"[]", b"{}", b'"x"', b"\xff\xfe" * 50, b"{" * 100_000)
    yield pickle.dumps(Bomb(crater))
    yield b"[" * 100_000 + b"]" * 100_000
    yield b'{"v":1,"t":"CancelRequest","m":' + b'{"a":' * 50_000 + b"}" * 50_000 + b"}"
    yield b"x" * (2 * 1024 * 1024)
    yield from (chance.randbytes(chance.randrange(1, 400)) for _ in range(30))
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    for wrong in (
        {"v": 2},
        {"v": "1"},
        {"v": True},
        {"t": "os.system"},
        {"t": None},
        {"m": 7},
        {"m": None},
    ):
        envelope = {
            "v": VERSION,
            "t": "CancelRequest",
            "m": {"request": "r", "attempt": 1, "cause": ""},
        }
        yield orjson.dumps(envelope | wrong)
    for body in (
        {"request": "r"},
        {"request": "r" * 5000, "attempt": 1, "cause": ""},
        {"request": 5},
    ):
        yield orjson.dumps({"v": VERSION, "t": "CancelRequest", "m": body})


class Forger:
    """Well-formed messages of every type, with fields that are wrong, huge or out of date."""

    def __init__(self, seed: int, epochs: Mapping[str, int]) -> None:
        self._chance = random.Random(seed)
        self._epochs = epochs
        """Of the real workers; forged ones are older."""

    def messages(self, each: int) -> Iterator[tuple[str, bytes]]:
        for name, kind in REGISTRY.items():
            for _ in range(each):
                yield name, orjson.dumps({"v": VERSION, "t": name, "m": self._object(kind)})

    def _object(self, kind: type) -> dict[str, Any]:
        hints = typing.get_type_hints(kind)
        fields = {f.name: self._value(hints[f.name], f.name) for f in dataclasses.fields(kind)}
        worker = fields.get("worker")
        for name in ("epoch", "leader_epoch"):
            if name in fields:
                newest = self._epochs.get(str(worker), 1) - 1
                fields[name] = self._chance.choice((-1, 0, max(0, newest)))
        if kind.__name__ == "RegisterWorker":
            fields["worker"] = self._chance.choice(_TEXTS)
        return fields

    def _value(self, kind: Any, name: str) -> Any:
        if isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            present = next(part for part in inner if part is not types.NoneType)
            return None if self._chance.random() < 0.3 else self._value(present, name)
        if origin is tuple:
            count = self._chance.randrange(_LONGEST + 1)
            return [self._value(inner[0], name) for _ in range(count)]
        if origin is dict:
            return {"a": self._value(inner[1], name)}
        if dataclasses.is_dataclass(kind):
            return self._object(typing.cast(type, kind))
        return self._plain(kind, name)

    def _plain(self, kind: Any, name: str) -> Any:
        chance = self._chance
        if kind is bool:
            return chance.random() < 0.5
        if kind is int:
            return chance.choice(_NUMBERS)
        if kind is float:
            return chance.choice(_SECONDS)
        if name in ("worker", "reader", "gateway", "excluded"):
            return chance.choice((*self._epochs, *_TEXTS))
        return chance.choice(_TEXTS)
