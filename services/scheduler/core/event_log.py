"""Lines of an event log: the settings first, then each event with its instant and what it led to.

Pure: values to bytes and back. The same settings, seed and events give the same lines byte for
byte, so a log can be played again. Lengths, block names and times; never text or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

import orjson

from services.scheduler.core import events as ev
from services.scheduler.core.balance.settings import BalanceSettings
from services.scheduler.core.machine import SchedulerSettings
from services.scheduler.core.placement.settings import PlacementSettings
from services.scheduler.core.placement.weights import Weights
from services.scheduler.core.recovery import RetrySettings
from shared.errors import WireError
from shared.wire import codec

FORMAT: Final = "baton.events/1"
_OWN: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in get_args(ev.Event) if kind.__module__ == ev.__name__
}
"""Events that are no wire messages."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event. `actions` as they were told: names and fields."""

    at_s: float
    event: ev.Event
    actions: tuple[tuple[str, Mapping[str, Any]], ...]


def opening(settings: SchedulerSettings, seed: int) -> bytes:
    """The first line."""
    return orjson.dumps({"format": FORMAT, "seed": seed, "settings": settings})


def entry(at_s: float, event: ev.Event, actions: Sequence[ev.Action]) -> bytes:
    """Any other line."""
    told = [{"t": type(action).__name__, "m": action} for action in actions]
    return orjson.dumps({"at": at_s, "t": type(event).__name__, "m": event, "a": told})


def read_opening(line: bytes) -> tuple[SchedulerSettings, int]:
    """Raises WireError."""
    found = _object(line)
    settings, seed = found.get("settings"), found.get("seed")
    if found.get("format") != FORMAT or not isinstance(settings, dict) or type(seed) is not int:
        raise WireError(f"this is no event log of the form {FORMAT}")
    try:
        placement = dict(settings["placement"])
        placement["weights"] = Weights(**placement["weights"])
        whole = settings | {
            "placement": PlacementSettings(**placement),
            "retries": RetrySettings(**settings["retries"]),
            "balance": BalanceSettings(**settings["balance"]),
        }
        return SchedulerSettings(**whole), seed
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"the settings are those of another version: {error}") from error


def read_entry(line: bytes) -> Entry:
    """Raises WireError."""
    found = _object(line)
    at_s, name, fields, told = (found.get(key) for key in ("at", "t", "m", "a"))
    if not isinstance(at_s, float | int) or isinstance(at_s, bool):
        raise WireError("at is not a number")
    if not isinstance(fields, dict) or not isinstance(told, list):
        raise WireError("m is not an object, or a is not a list")
    return Entry(float(at_s), _event(name, fields), tuple(_action(action) for action in told))


def _event(name: object, fields: dict[str, Any]) -> ev.Event:
    own = _OWN.get(name) if isinstance(name, str) else None
    try:
        if own is not None:
            return own(**fields)  # type: ignore[no-any-return]
    except TypeError as error:
        raise WireError(f"t {name!r} has other fields") from error
    whole = orjson.dumps({"v": codec.VERSION, "t": name, "m": fields})
    return cast(ev.Event, codec.decode(whole))


def _action(told: object) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(told, dict) or not isinstance(told.get("m"), dict):
        raise WireError("a has an entry without t and m")
    return str(told.get("t")), told["m"]


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise WireError("not JSON") from error
    if not isinstance(found, dict):
        raise WireError("not an object")
    return found
