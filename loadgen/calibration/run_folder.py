"""What a live run left: `requests.csv` of `loadgen run`, and `spans.jsonl`, a line per trace.

Every field that is used is checked; what is wrong is named by file, line and field.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.workloads.file import lines

ROWS: Final = "requests.csv"
SPANS: Final = "spans.jsonl"


class RunError(ValueError):
    """A run that cannot be read: says which file, line and field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One answered request. Seconds of the run."""

    number: int
    group: int
    intended_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    trace_id: str

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.intended_s

    @property
    def tpot_s(self) -> float:
        rest = self.output_tokens - 1
        return (self.last_s - self.first_s) / rest if rest > 0 else 0.0


def read_rows(folder: Path) -> tuple[Served, ...]:
    """Answered requests in order of number. Raises RunError."""
    path = folder / ROWS
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            found = [
                _row(f"{path}, line {reader.line_num}", row)
                for row in reader
                if row.get("outcome") == "ok"
            ]
    except OSError as error:
        raise RunError(f"{path}: {error.strerror or error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise RunError(f"{path}: {error}") from None
    if not found:
        raise RunError(f"{path}: no request was answered")
    return tuple(sorted(found, key=lambda row: row.number))


def joined(runs: Sequence[Sequence[Served]]) -> tuple[Served, ...]:
    """Runs one after the other, as if each had begun when the one before was over."""
    found: list[Served] = []
    begin_s = 0.0
    for rows in runs:
        found += [
            replace(
                row,
                number=len(found) + place,
                intended_s=row.intended_s + begin_s,
                first_s=row.first_s + begin_s,
                last_s=row.last_s + begin_s,
            )
            for place, row in enumerate(rows)
        ]
        begin_s = max([begin_s, *(row.last_s for row in found)])
    return tuple(found)


def read_spans(folder: Path) -> tuple[tuple[Mapping[str, Any], ...], ...]:
    """The spans of each trace. Raises RunError, WorkloadError."""
    path = folder / SPANS
    traces = []
    for number, row in lines(path):
        spans = row.get("spans")
        if not isinstance(spans, list) or not all(isinstance(span, dict) for span in spans):
            raise RunError(f"{path}, line {number}: spans must be a list of objects")
        traces.append(tuple(spans))
    if not traces:
        raise RunError(f"{path}: no traces")
    return tuple(traces)


def write_spans(folder: Path, traces: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """A line per trace. Raises OSError."""
    with (folder / SPANS).open("wb") as file:
        for spans in traces:
            file.write(orjson.dumps({"spans": spans}) + b"\n")


def _row(where: str, row: Mapping[str, str | None]) -> Served:
    return Served(
        number=int(_number(where, row, "number")),
        group=int(_number(where, row, "group")),
        intended_s=_number(where, row, "intended_s"),
        first_s=_number(where, row, "first_s"),
        last_s=_number(where, row, "last_s"),
        prompt_tokens=int(_number(where, row, "prompt_tokens", 1)),
        cached_tokens=int(_number(where, row, "cached_tokens")),
        output_tokens=int(_number(where, row, "output_tokens", 1)),
        trace_id=row.get("trace_id") or "",
    )


def _number(where: str, row: Mapping[str, str | None], name: str, least: float = 0.0) -> float:
    text = row.get(name)
    try:
        value = float(text or "")
    except ValueError:
        raise RunError(f"{where}: {name} is {text!r}; expected a number") from None
    if not (math.isfinite(value) and value >= least):
        raise RunError(f"{where}: {name} is {text!r}; expected at least {least:g}")
    return value


def named(spans: Iterable[Mapping[str, Any]], name: str) -> Iterator[Mapping[str, Any]]:
    """Spans of one kind."""
    return (span for span in spans if span.get("name") == name)


def seconds(span: Mapping[str, Any]) -> float:
    """How long a span lasted. Raises RunError."""
    begin, end = when(span)
    return (end - begin) / 1e9


def when(span: Mapping[str, Any]) -> tuple[int, int]:
    """Begin and end of a span in nanoseconds. Raises RunError."""
    try:
        return int(span["start_ns"]), int(span["end_ns"])
    except (KeyError, TypeError, ValueError):
        raise RunError(f"a span {span.get('name')!r} has no start_ns and end_ns") from None
