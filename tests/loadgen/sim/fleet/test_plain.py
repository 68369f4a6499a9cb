"""Messages without guards are the same messages."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields

import pytest

from loadgen.sim.fleet.plain import unguarded
from shared.bus.headers import Headers
from shared.ids import Epoch, WorkerId
from shared.wire.requests import Accepted
from shared.wire.workers import Heartbeat


@dataclass(frozen=True, slots=True)
class _Foreign:
    number: int


def test_a_message_made_without_guards_equals_one_made_with_them() -> None:
    by_place, by_name = Accepted(WorkerId("decode-0"), Epoch(3)), Headers(epoch=4)
    with unguarded():
        assert Accepted(WorkerId("decode-0"), Epoch(3)) == by_place
        again = Headers(epoch=4)
    assert (again, hash(again), repr(again)) == (by_name, hash(by_name), repr(by_name))


def test_what_misses_or_exceeds_the_fields_is_refused_as_before() -> None:
    with unguarded():
        with pytest.raises(TypeError, match="epoch"):
            Accepted(WorkerId("decode-0"))  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="unexpected"):
            Headers(era=4)  # type: ignore[call-arg]


def test_guards_are_back_after_the_outermost_run() -> None:
    guards = [Headers.__init__, Headers.__setattr__, Headers.__delattr__]
    with unguarded():
        with unguarded():
            assert Headers.__setattr__ is object.__setattr__
        assert Headers.__setattr__ is object.__setattr__
    assert guards == [Headers.__init__, Headers.__setattr__, Headers.__delattr__]
    with pytest.raises(FrozenInstanceError):
        Headers().epoch = 1  # type: ignore[misc]


def test_guards_are_back_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), unguarded():
        _ = 1 / 0
    assert Headers.__setattr__ is not object.__setattr__


def test_defaults_are_those_of_the_fields() -> None:
    with unguarded():
        made = Headers()
    assert {field.name: getattr(made, field.name) for field in fields(Headers)} == {
        field.name: field.default for field in fields(Headers)
    }


def test_only_messages_of_services_are_touched() -> None:
    with unguarded():
        assert Heartbeat.__setattr__ is object.__setattr__
        with pytest.raises(FrozenInstanceError):
            _Foreign(1).number = 2  # type: ignore[misc]
