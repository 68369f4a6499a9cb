"""`--assert "p99_ttft_ms<800"`: claims about a run's figures that decide its exit code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_FORM: Final = re.compile(r"\s*([a-z0-9_]+)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*\Z")
_HOW: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_PARTS: Final = re.compile(r"(mean|p\d+)_(.+)\Z")


class ClaimError(ValueError):
    """A claim that cannot be read."""


@dataclass(frozen=True, slots=True)
class Claim:
    """NAME OP NUMBER."""

    name: str
    how: str
    limit: float

    def judge(self, document: Mapping[str, Any]) -> str:
        """Empty when it holds, else why not. A figure that is absent does not hold."""
        found = _look_up(document, self.name)
        if found is None:
            return f"{self.name} is absent in this run"
        if _HOW[self.how](found, self.limit):
            return ""
        return f"{self.name} is {found:g}, not {self.how} {self.limit:g}"


def read(text: str) -> Claim:
    """Raises ClaimError."""
    match = _FORM.match(text)
    try:
        limit = float(match.group(3)) if match else None
    except ValueError:
        limit = None
    if match is None or limit is None:
        raise ClaimError(f'--assert {text!r}: expected NAME OP NUMBER, as in "p99_ttft_ms<800"')
    return Claim(match.group(1), match.group(2), limit)


def _look_up(document: Mapping[str, Any], name: str) -> float | None:
    """`p99_ttft_ms`, or a plain figure such as `goodput_rps`, `attainment`, `requests_per_s`."""
    parts = _PARTS.match(name)
    metrics = document["metrics"]
    if parts is not None:
        spread = metrics.get(parts.group(2))
        value = spread.get(parts.group(1)) if isinstance(spread, Mapping) else None
        return float(value) if isinstance(value, int | float) else None
    for place in (metrics, document["goodput"], document["reuse"], document["counts"]["outcomes"]):
        if isinstance(value := place.get(name), int | float):
            return float(value)
    return None
