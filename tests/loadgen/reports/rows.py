"""Rows made by hand."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

from loadgen.records import DERIVED, NAMES, Row, cells
from loadgen.reports.run_files import Rows, read_rows


def row_of(number: int, *, lag: float = 0.0, **said: Any) -> Row:
    """`at`, `ttft`, `tpot`, `tokens`, `lag`, `held`, `outcome`, …: seconds."""
    at_s = float(said.get("at", 0.0))
    outcome = said.get("outcome", "ok")
    row = Row(number, number, at_s, f"{number:032x}", outcome=outcome)
    row.sent_s = at_s + lag
    row.held_s = float(said.get("held", 0.0))
    row.prompt_tokens, row.cached_tokens = said.get("prompt", 10), said.get("cached", 0)
    row.wanted_prompt_tokens = row.prompt_tokens
    row.phase, row.tenant = said.get("phase", "measured"), said.get("tenant", "default")
    row.reason, row.step = said.get("reason", ""), said.get("step", 0)
    if (ttft_s := said.get("ttft")) is not None:
        tokens = int(said.get("tokens", 11))
        row.first_s = at_s + ttft_s
        row.last_s = row.first_s + said.get("tpot", 0.01) * (tokens - 1)
        row.output_tokens = row.chunks = tokens
    return row


def write_rows(folder: Path, *said: dict[str, Any]) -> None:
    """As requests.csv."""
    with (folder / "requests.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*NAMES, *DERIVED))
        writer.writerows(cells(row_of(number, **one)) for number, one in enumerate(said))


def rows_of(*said: dict[str, Any]) -> Rows:
    """Written and read back."""
    with tempfile.TemporaryDirectory() as name:
        write_rows(Path(name), *said)
        return read_rows(Path(name))
