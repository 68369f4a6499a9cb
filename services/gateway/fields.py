"""Reading single fields of a parsed body: exact types, closed ranges, the field's name in each
refusal, nothing of its value.

`null` means absent where a field is optional. Knows no endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

from shared.errors import ClientError, Code

Body = Mapping[str, object]


def refuse(param: str, rule: str, code: Code = Code.INVALID_PARAMETER) -> NoReturn:
    """Raise the 400 of a field: '`param` must be ...'."""
    raise ClientError(f"'{param}' {rule}", code, param)


def integer(body: Body, name: str, low: int, high: int) -> int | None:
    """A whole number, written as one: neither true nor 1.0 nor "1"."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        refuse(name, f"must be an integer from {low} to {high}")
    return value


def number(
    body: Body, name: str, low: float, high: float, default: float, *, above: bool = False
) -> float:
    """A finite number in [low, high], or in (low, high] with `above`."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int and type(value) is not float:
        refuse(name, "must be a number")
    in_range = low <= value <= high and not (above and value == low)
    if not in_range or not math.isfinite(value):
        rule = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        refuse(name, f"must be a number {rule}")
    return float(value)


def boolean(body: Body, name: str, param: str | None = None) -> bool:
    """true or false; absent reads as false."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        refuse(param or name, "must be true or false")
    return value


def text(body: Body, name: str, *, limit: int) -> str:
    """A required, non-empty string."""
    value = body.get(name)
    if not isinstance(value, str) or not value or len(value) > limit:
        refuse(name, f"must be a string of 1 to {limit} characters")
    return value


def stops(body: Body) -> tuple[str, ...]:
    """`stop`: a string or up to four, each of 1 to 256 characters."""
    value = body.get("stop")
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > 4:
        refuse("stop", "must be a string or a list of at most 4 strings")
    for entry in found:
        if not isinstance(entry, str) or not 1 <= len(entry) <= 256:
            refuse("stop", "must hold strings of 1 to 256 characters")
    return tuple(found)


def stream_options(body: Body, stream: bool) -> bool:
    """`stream_options`: whether a usage chunk is wanted. Only allowed with `stream`."""
    value = body.get("stream_options")
    if value is None:
        return False
    if not isinstance(value, dict):
        refuse("stream_options", "must be an object")
    if not stream:
        refuse("stream_options", "needs 'stream': true")
    if boolean(value, "continuous_usage_stats", "stream_options.continuous_usage_stats"):
        name = "stream_options.continuous_usage_stats"
        refuse(name, "is not supported", Code.UNSUPPORTED_PARAMETER)
    return boolean(value, "include_usage", "stream_options.include_usage")
