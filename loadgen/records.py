"""One row per request, and what the latency words mean.

ttft = first chunk with a token minus the *intended* send; e2e = last token chunk minus the
intended send; tpot = (e2e - ttft) / (n - 1) with n the server's count, absent for n < 2.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final


@dataclass(slots=True)
class Row:
    """What happened to one request. Times are seconds from the start of the run."""

    number: int
    group: int
    intended_s: float
    trace_id: str
    sent_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    chunks: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    status: int | None = None
    outcome: str = "incomplete"
    """'ok', 'refused', 'error', 'broken' (a stream without its end), 'cancelled' (by the load
    generator, on purpose) or 'incomplete'."""
    reason: str = ""
    finish: str = ""
    request_id: str = ""
    route: str = ""
    phase: str = "measured"
    """'warmup' rows are in no figure."""
    step: int = 0
    """Of a sweep."""
    tenant: str = "default"
    turn: int = 0
    """Of a conversation, from 0; the depth of a call in a tree."""
    wanted_prompt_tokens: int | None = None
    wanted_output_tokens: int | None = None
    held_s: float = 0.0
    """Kept back by the cap on requests at a time: part of the latency, not the client's fault."""
    widest_gap_s: float | None = None
    """Between two chunks of the answer."""
    counted: str = "usage"
    """Who counted output_tokens: the server's 'usage', or 'chunks' where it sends none."""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.intended_s

    @property
    def ttft_sent_s(self) -> float | None:
        """The same from the actual send: what the server is to answer for."""
        if self.first_s is None or self.sent_s is None:
            return None
        return self.first_s - self.sent_s

    @property
    def e2e_s(self) -> float | None:
        return None if self.last_s is None else self.last_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        if self.first_s is None or self.last_s is None or (self.output_tokens or 0) < 2:
            return None
        return (self.last_s - self.first_s) / ((self.output_tokens or 0) - 1)


NAMES: Final = tuple(field.name for field in fields(Row))
DERIVED: Final = ("ttft_s", "ttft_sent_s", "tpot_s", "e2e_s")


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """All rows with the derived latencies, times in seconds, absent values empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*NAMES, *DERIVED))
        writer.writerows(cells(row) for row in rows)


def cells(row: Row) -> list[object]:
    """One line of the file, in the order of NAMES and DERIVED."""
    return [_cell(getattr(row, name)) for name in (*NAMES, *DERIVED)]


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6f}" if isinstance(value, float) else value
