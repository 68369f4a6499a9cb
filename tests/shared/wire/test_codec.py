"""The codec: every message survives, nothing else gets in."""

from __future__ import annotations

import dataclasses
import pickle
import types
import typing
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import WireError
from shared.wire import codec
from shared.wire.requests import Acknowledged, Ended, PlaceRequest, TokenChunk, TokenEntry


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field type of the registry."""
    if isinstance(kind, typing.NewType):
        return values(kind.__supertype__)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(values(part) for part in typing.get_args(kind)))
    if origin is tuple:
        return st.lists(values(typing.get_args(kind)[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), values(typing.get_args(kind)[1]), max_size=3)
    if dataclasses.is_dataclass(kind):
        return messages(typing.cast(type, kind))
    return {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=20),
        bool: st.booleans(),
        types.NoneType: st.none(),
    }[kind]


def messages(kind: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{f.name: values(hints[f.name]) for f in dataclasses.fields(kind)})


@pytest.mark.parametrize("name", sorted(codec.REGISTRY))
def test_every_message_type_survives_the_wire(name: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(messages(codec.REGISTRY[name]))
    def survives(message: Any) -> None:
        assert codec.decode(codec.encode(message)) == message

    survives()


@pytest.mark.parametrize("name", sorted(codec.REGISTRY))
def test_messages_are_frozen_and_slotted(name: str) -> None:
    kind = codec.REGISTRY[name]
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)


GOOD = {"v": 1, "t": "Ended", "m": {"request": "r", "attempt": 1}}


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"v": 1.0},
        {"t": "Nothing"},
        {"t": "WorkerRefs"},
        {"t": ["Ended"]},
        {"t": None},
        {"m": None},
        {"m": []},
        {"m": {}},
        {"m": {"request": "r"}},
        {"m": {"request": "r", "attempt": 1, "more": 1}},
        {"m": {"request": "r", "attempt": "1"}},
        {"m": {"request": "r", "attempt": 1.0}},
        {"m": {"request": "r", "attempt": True}},
        {"m": {"request": 7, "attempt": 1}},
        {"m": {"request": "r" * 5000, "attempt": 1}},
        {"extra": 1},
    ],
)
def test_wrong_shapes_are_refused(change: dict[str, Any]) -> None:
    assert codec.decode(orjson.dumps(GOOD)) == Ended("r", 1)
    with pytest.raises(WireError):
        codec.decode(orjson.dumps(GOOD | change))


def test_an_integer_beyond_64_bits_does_not_become_a_float() -> None:
    with pytest.raises(WireError):
        codec.decode(orjson.dumps(GOOD).replace(b":1}", b":1180591620717411303424}"))


def test_a_type_outside_the_registry_cannot_be_sent() -> None:
    @dataclasses.dataclass
    class Ended:
        request: str

    with pytest.raises(WireError, match="not a wire message"):
        codec.encode(Ended("r"))


def test_what_json_cannot_say_is_an_error_and_not_a_null() -> None:
    place = {"prompt_tokens": 1, "max_tokens": 1, "model_digest": "m", "route": "auto"}
    with pytest.raises(WireError):
        codec.encode(
            PlaceRequest(
                request="\ud800",  # type: ignore[arg-type]
                attempt=1,  # type: ignore[arg-type]
                block_hashes=(),
                excluded=(),
                deadline_s=1.0,
                **place,  # type: ignore[arg-type]
            )
        )


def test_oversized_input_is_refused_before_parsing() -> None:
    with pytest.raises(WireError, match="too large"):
        codec.decode(b"[" * (codec.MAX_BYTES + 1))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        codec.decode(data)


def test_a_pickle_is_just_bad_bytes() -> None:
    with pytest.raises(WireError):
        codec.decode(pickle.dumps(Acknowledged()))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_mutated_message_is_refused_or_still_a_message(data: st.DataObject) -> None:
    good = codec.encode(
        TokenChunk("decode-0", 3, (TokenEntry("r", 1, 0, (5, 6), None, 16),))  # type: ignore[arg-type]
    )
    mutated = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = codec.decode(bytes(mutated))
    except WireError as error:
        assert "decode-0" not in str(error)
    else:
        assert type(found) in codec.REGISTRY.values()
