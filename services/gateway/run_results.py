"""Result folders of the load generator, read for the page 'runs': listed, shown, compared.

Trusts nothing in them: sizes are bounded, names are looked up and never joined to a path.
"""

from __future__ import annotations

import csv
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from shared.errors import ClientError, Code

MOST_RUNS: Final = 200
_MOST_JSON: Final = 4 * 1024 * 1024
_MOST_ROWS: Final = 200_000
_WORST: Final = 20
_CURVE_POINTS: Final = 120
_RESAMPLES: Final = 400
_RESAMPLED: Final = 2_000
_LEAST_SHARE: Final = 0.01
_LATENCIES: Final = ("ttft_s", "tpot_s", "e2e_s")
_OF_ROW: Final = (
    "number", "trace_id", "request_id", "outcome", "reason", "route", "prompt_tokens",
    "cached_tokens", "output_tokens",
)  # fmt: skip

Row = dict[str, str]


class RunResults:
    """One folder with a folder for each run. Blocks: call it from a thread."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def list(self) -> list[dict[str, Any]]:
        """Newest first; a run that cannot be read says why. Raises OSError: the folder cannot."""
        folders = sorted(self._folders().values(), key=_changed_s, reverse=True)
        return [
            {"id": path.name, "changed_ms": round(_changed_s(path) * 1000), **_headline(path)}
            for path in folders[:MOST_RUNS]
        ]

    def one(self, name: str) -> dict[str, Any]:
        """The run's own figures, curves and its worst requests. Raises ClientError."""
        path = self._find(name)
        document, rows = _document(path), _rows(path)
        answered = [row for row in rows if row.get("outcome") == "ok"]
        worst = sorted(rows, key=lambda r: _number(r.get("ttft_s")) or -1.0, reverse=True)
        return {
            "id": name,
            "changed_ms": round(_changed_s(path) * 1000),
            **_headline(path),
            "document": document,
            "rows": len(rows),
            "curves": {which: _curve(sorted(_values(answered, which))) for which in _LATENCIES},
            "worst": [
                {key: row.get(key, "") for key in (*_OF_ROW, *_LATENCIES)} for row in worst[:_WORST]
            ],
        }

    def compare(self, first: str, second: str) -> dict[str, Any]:
        """Medians side by side, each difference with the interval it may lie in by chance."""
        one, other = _rows(self._find(first)), _rows(self._find(second))
        return {
            "first": first,
            "second": second,
            "figures": [
                _difference(which, _values(one, which), _values(other, which))
                for which in _LATENCIES
            ],
            "outcomes": [_outcomes(one), _outcomes(other)],
        }

    def _folders(self) -> dict[str, Path]:
        return {
            path.name: path
            for path in Path(self.folder).iterdir()
            if path.is_dir() and not path.is_symlink() and (path / "run.json").is_file()
        }

    def _find(self, name: str) -> Path:
        try:
            found = self._folders().get(name)
        except OSError:
            found = None
        if found is None:
            raise ClientError("there is no such run", Code.UNKNOWN_REQUEST)
        return found


def _changed_s(path: Path) -> float:
    try:
        return (path / "run.json").stat().st_mtime
    except OSError:
        return 0.0


def _document(path: Path) -> dict[str, Any]:
    """Raises ClientError that says what is wrong with the file."""
    file = path / "run.json"
    try:
        if file.stat().st_size > _MOST_JSON:
            raise ClientError("run.json is too large to show", Code.BODY_TOO_LARGE)
        found = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        raise ClientError("run.json cannot be read", Code.INVALID_JSON) from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(schema, str) or not schema.startswith("baton.run/1"):
        raise ClientError("run.json is not of a version that is known here", Code.INVALID_JSON)
    return dict(found)


def _headline(path: Path) -> dict[str, Any]:
    try:
        document = _document(path)
    except ClientError as error:
        return {"problem": error.message}
    client, warnings = document.get("client"), document.get("warnings")
    reasons = client.get("reasons") if isinstance(client, dict) else None
    limited = isinstance(client, dict) and client.get("limited") is True
    return {
        "problem": "",
        "source": str(document.get("source", ""))[:64],
        "metrics": _object(document, "metrics"),
        "goodput": _object(document, "goodput"),
        "limited": [str(one)[:200] for one in reasons[:8]] if limited and reasons else [],
        "warnings": [str(one)[:300] for one in warnings[:8]] if isinstance(warnings, list) else [],
        "interrupted": document.get("interrupted") is True,
    }


def _object(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _rows(path: Path) -> list[Row]:
    """Of requests.csv, without those that warmed up; empty where there is none."""
    try:
        with (path / "requests.csv").open(newline="", encoding="utf-8", errors="replace") as file:
            rows = zip(csv.DictReader(file), range(_MOST_ROWS), strict=False)
            return [row for row, _ in rows if row.get("phase") != "warmup"]
    except (OSError, csv.Error):
        return []


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _values(rows: Sequence[Row], which: str) -> list[float]:
    """Of answered requests, in their order."""
    found = (_number(row.get(which)) for row in rows if row.get("outcome") == "ok")
    return [value for value in found if value is not None]


def _curve(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """Share of requests that were at most so slow."""
    if not ordered:
        return []
    last = len(ordered) - 1
    points = min(_CURVE_POINTS, len(ordered))
    ranks = [round(last * point / max(1, points - 1)) for point in range(points)]
    return [(ordered[rank], (rank + 1) / len(ordered)) for rank in ranks]


def _difference(which: str, one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    if len(one) < 5 or len(other) < 5:
        return {"name": which, "verdict": "too few answered requests to compare"}
    drawn = random.Random(len(one) * 7919 + len(other))
    fewer = _thinned(one), _thinned(other)
    shifts = sorted(
        statistics.median(_again(fewer[1], drawn)) - statistics.median(_again(fewer[0], drawn))
        for _ in range(_RESAMPLES)
    )
    low, high = shifts[round(0.025 * _RESAMPLES)], shifts[round(0.975 * _RESAMPLES) - 1]
    change = abs(statistics.median(other) - statistics.median(one))
    shown = (low > 0 or high < 0) and change > _LEAST_SHARE * statistics.median(one)
    faster = "the second is faster" if high < 0 else "the second is slower"
    return {
        "name": which,
        "first": statistics.median(one),
        "second": statistics.median(other),
        "low": low,
        "high": high,
        "verdict": faster if shown else "no difference shown",
    }


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """Evenly taken, in their order."""
    return values[:: -(-len(values) // _RESAMPLED)]


def _again(values: Sequence[float], drawn: random.Random) -> list[float]:
    """As many, in stretches: requests resemble their neighbours, with whom they shared a queue."""
    count = len(values)
    length = max(1, math.ceil(2 * math.cbrt(count)))
    found: list[float] = []
    while len(found) < count:
        begin = drawn.randrange(count)
        found += values[begin : begin + length]
        found += values[: max(0, begin + length - count)]
    return found[:count]


def _outcomes(rows: Sequence[Row]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        name = row.get("outcome", "")[:32]
        if name in found or len(found) < 16:
            found[name] = found.get(name, 0) + 1
    return found
