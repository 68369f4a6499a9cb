"""Single flags as values: ranges, shares, headers, JSON. What cannot be is told by its name."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.load.envelope import check_header

_SAMPLING: Final = (
    "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip


class UsageError(ValueError):
    """Flags that cannot be meant."""


def headers(options: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """Of --header and --api-key-file. Raises UsageError, OSError."""
    found = []
    for entry in options.header:
        sign = ":" if ":" in entry else "="
        name, _, text = entry.partition(sign)
        check_header(name.strip(), text.strip())
        found.append((name.strip(), text.strip()))
    if options.api_key_file is not None:
        found.append(("Authorization", f"Bearer {key(options.api_key_file)}"))
    return tuple(found)


def key(path: Path) -> str:
    """The one line of a file. Raises UsageError, OSError."""
    key = path.read_text("ascii").strip()
    if not key or not key.isprintable():
        raise UsageError(f"{path} holds no key")
    return key


def body(options: argparse.Namespace) -> Mapping[str, Any]:
    """What every body gets. Raises UsageError."""
    extra: dict[str, Any] = {}
    if options.extra_body:
        try:
            extra = orjson.loads(options.extra_body)
        except orjson.JSONDecodeError as error:
            raise UsageError(f"--extra-body is not JSON: {error}") from None
        if not isinstance(extra, dict):
            raise UsageError("--extra-body must be a JSON object")
    named = ((name, getattr(options, name)) for name in _SAMPLING)
    return {name: value for name, value in named if value is not None} | extra


def objects(path: Path | None, flag: str) -> dict[str, dict[str, Any]]:
    """A JSON object of objects; empty without a file. Raises UsageError, OSError."""
    if path is None:
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{flag} {path} is not JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise UsageError(f"{flag} {path}: expected an object of objects")
    return found


def tenants(path: Path | None) -> dict[str, dict[str, Any]]:
    """By name. Raises UsageError, OSError."""
    found = objects(path, "--tenants")
    for name, tenant in found.items():
        if not isinstance(tenant.get("weight", 1), int | float) or tenant.get("weight", 1) <= 0:
            raise UsageError(f"--tenants {path}: the weight of {name} must be above 0")
    return found


def percentiles(text: str) -> tuple[float, ...]:
    """Those that were asked for, and the usual. Raises UsageError."""
    wanted = {50.0, 90.0, 95.0, 99.0, 99.9}
    try:
        wanted |= {float(part) for part in text.split(",") if part.strip()}
    except ValueError:
        raise UsageError(f"--metric-percentiles {text!r}: expected numbers, as in 50,99") from None
    if not all(0 < percent < 100 for percent in wanted):
        raise UsageError("--metric-percentiles must lie between 0 and 100")
    return tuple(sorted(wanted))


def steady(text: str) -> tuple[float, float]:
    """Two shares, A:B. Raises UsageError."""
    first, _, last = text.partition(":")
    try:
        found = float(first), float(last)
    except ValueError:
        found = (1.0, 0.0)
    if not 0 <= found[0] < found[1] <= 1:
        raise UsageError(f"--steady-window {text!r}: expected shares, as in 0.1:0.9")
    return found


def whole_range(flag: str, text: str) -> tuple[int, int]:
    """N or LEAST:MOST. Raises UsageError."""
    low, colon, high = text.partition(":")
    if not low.isdecimal() or (colon and not high.isdecimal()):
        raise UsageError(f"{flag} {text!r}: expected N or LEAST:MOST")
    found = int(low), int(high) if colon else int(low)
    if not 1 <= found[0] <= found[1] <= 1 << 24:
        raise UsageError(f"{flag} {text!r}: expected 1 or more, the least first")
    return found


def at_least(flag: str, value: float, least: float) -> float:
    """Raises UsageError."""
    if not (math.isfinite(value) and value >= least):
        raise UsageError(f"{flag} is {value:g}; expected at least {least:g}")
    return value


def within(flag: str, value: float, least: float, most: float) -> float:
    """Raises UsageError."""
    if not least <= value <= most:
        raise UsageError(f"{flag} is {value:g}; expected {least:g}..{most:g}")
    return value
