"""The files of a run: `run.json` with its schema, and rows read back into columns.

Whatever is wrong with a file is told with its name, line and field; nothing in it is trusted.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from loadgen.records import NAMES

SCHEMA: Final = "baton.run/1"
RUN: Final = "run.json"
ROWS: Final = "requests.csv"
PARQUET: Final = "requests.parquet"
REPORT: Final = "report.html"
_MOST_JSON: Final = 16 << 20
_MOST_ROWS: Final = 10_000_000
_NEEDED: Final = ("number", "intended_s", "outcome", "ttft_s", "tpot_s", "e2e_s")
_NUMBERS: Final = (
    "number", "group", "intended_s", "sent_s", "first_s", "last_s", "chunks", "prompt_tokens",
    "cached_tokens", "output_tokens", "step", "turn", "wanted_prompt_tokens",
    "wanted_output_tokens", "held_s", "widest_gap_s", "ttft_s", "ttft_sent_s", "tpot_s", "e2e_s",
)  # fmt: skip
_WORDS: Final = ("outcome", "reason", "route", "phase", "tenant", "counted", "finish")
_MARKS: Final = ("trace_id", "request_id")
_PHASE, _STEP = NAMES.index("phase"), NAMES.index("step")

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class RunFileError(ValueError):
    """A run that cannot be read: which file, line and field, and why."""


@dataclass(slots=True)
class Rows:
    """Columns of one run, in order of number. Absent numbers are NaN, absent words empty."""

    numbers: dict[str, Numbers]
    words: dict[str, npt.NDArray[np.str_]]
    marks: dict[str, npt.NDArray[np.bytes_]]

    def __len__(self) -> int:
        return len(self.numbers["number"])

    def where(self, mask: Mask) -> Rows:
        """Only the rows of the mask."""
        return Rows(
            {name: column[mask] for name, column in self.numbers.items()},
            {name: column[mask] for name, column in self.words.items()},
            {name: column[mask] for name, column in self.marks.items()},
        )

    def measured(self) -> Rows:
        """Without warming up."""
        return self.where(self.words["phase"] != "warmup")

    def between(self, first_s: float, last_s: float) -> Rows:
        """Intended in a window."""
        at = self.numbers["intended_s"]
        return self.where((at >= first_s) & (at <= last_s))

    @property
    def ok(self) -> Mask:
        found: Mask = self.words["outcome"] == "ok"
        return found


def read_rows(folder: Path) -> Rows:
    """Of requests.csv, or of the parts that an unfinished run left. Raises RunFileError."""
    whole = folder / ROWS
    parts = [whole] if whole.exists() else sorted(folder.glob("rows-*.csv"))
    if not parts:
        raise RunFileError(f"{folder}: no {ROWS} here")
    return read_parts(parts, unfinished=whole not in parts)


def read_parts(parts: Sequence[Path], unfinished: bool = True) -> Rows:
    """Of these files together. In an unfinished one the last line may be cut. Raises
    RunFileError."""
    columns: dict[str, list[Any]] = {name: [] for name in (*_NUMBERS, *_WORDS, *_MARKS)}
    for path in parts:
        for line, row in _lines(path, unfinished):
            _take(columns, row, f"{path}, line {line}")
            if len(columns["number"]) > _MOST_ROWS:
                raise RunFileError(f"{path}: more than {_MOST_ROWS} rows")
    order = np.argsort(np.asarray(columns["number"]), kind="stable")
    return Rows(
        {name: np.asarray(columns[name], np.float64)[order] for name in _NUMBERS},
        {name: np.asarray(columns[name], np.str_)[order] for name in _WORDS},
        {name: np.asarray(columns[name], np.bytes_)[order] for name in _MARKS},
    )


def read_run(folder: Path) -> dict[str, Any]:
    """Of run.json. Raises RunFileError."""
    path = folder / RUN
    try:
        if path.stat().st_size > _MOST_JSON:
            raise RunFileError(f"{path} is larger than {_MOST_JSON >> 20} MiB")
        found = orjson.loads(path.read_bytes())
    except OSError as error:
        raise RunFileError(f"{path}: {error.strerror or error}") from None
    except orjson.JSONDecodeError as error:
        raise RunFileError(f"{path} is not JSON: {error}") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(schema, str) or not schema.startswith("baton.run/"):
        raise RunFileError(f"{path} is no run of the load generator: schema is {schema!r}")
    if schema.partition("/")[2].partition(".")[0] != SCHEMA.partition("/")[2]:
        raise RunFileError(f"{path} has schema {schema!r}; this release reads {SCHEMA}")
    return dict(found)


def write_run(folder: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all. Raises OSError."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    replace_file(folder / RUN, orjson.dumps(document, option=options) + b"\n")


def replace_file(path: Path, content: bytes) -> None:
    """Whole or not at all. Raises OSError."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def merge_rows(parts: Sequence[Path], whole: Path) -> int:
    """Rows of all parts, in order of step and number, as one file; the parts are removed. Holds
    one place per row in memory, never the rows. Returns how many. Raises OSError."""
    files = [path.open("rb") for path in parts if path.is_file()]
    try:
        header, places = b"", []
        for place, file in enumerate(files):
            header = file.readline() or header
            at = file.tell()
            for line in file:
                if line.endswith(b"\n"):
                    places.append((*_order(line), place, at))
                at += len(line)
        places.sort()
        beside = whole.with_name(f".{whole.name}.new")
        with beside.open("wb") as target:
            target.write(header)
            for _, _, _, place, at in places:
                files[place].seek(at)
                target.write(files[place].readline())
        beside.replace(whole)
    finally:
        for file in files:
            file.close()
    for path in parts:
        path.unlink(missing_ok=True)
    return len(places)


def _order(line: bytes) -> tuple[bool, int, int]:
    """Warming up first, then by step and number."""
    cells = next(csv.reader([line.decode("utf-8", "replace")]), [])
    try:
        return cells[_PHASE] != "warmup", int(cells[_STEP]), int(cells[0])
    except (ValueError, IndexError):
        return True, 0, 0


def _lines(path: Path, unfinished: bool) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise RunFileError(f"{path}, line 1: no column {missing[0]}")
            for row in reader:
                short = None in row.values()
                if short and unfinished:
                    # The last line of a file that was being written.
                    return
                if short or None in row:
                    raise RunFileError(
                        f"{path}, line {reader.line_num}: not as many cells as line 1"
                    )
                yield reader.line_num, row
    except OSError as error:
        raise RunFileError(f"{path}: {error.strerror or error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise RunFileError(f"{path}: {error}") from None


def _take(columns: dict[str, list[Any]], row: Mapping[str, str | None], where: str) -> None:
    for name in _NUMBERS:
        text = row.get(name)
        try:
            value = float(text) if text else math.nan
        except ValueError:
            raise RunFileError(f"{where}: {name} is {text!r}; expected a number") from None
        columns[name].append(value)
    for name in _WORDS:
        columns[name].append((row.get(name) or "")[:96])
    for name in _MARKS:
        columns[name].append((row.get(name) or "").encode("ascii", "replace")[:64])
