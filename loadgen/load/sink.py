"""Where a client process puts ended requests: straight to a file, so that memory stays flat.

A disk that is full is told once; what was written before stays.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

from loadgen.load.histogram import Histogram
from loadgen.records import DERIVED, NAMES, Row, cells

_MOST_RECENT: Final = 2_000


class RowSink:
    """One file of rows and what the progress line wants to know."""

    def __init__(self, path: Path, steady: tuple[float, float]) -> None:
        """Raises OSError: the file cannot be made. Rows outside `steady` (intended seconds of the
        run) keep their gaps to themselves."""
        # Open until `close`: a run writes for minutes.
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow((*NAMES, *DERIVED))
        self._steady = steady
        self.gaps = Histogram()
        self.trouble = ""
        self.rows = 0
        self.outcomes: dict[str, int] = {}
        self.recent: list[tuple[float, float | None]] = []

    def counts_gaps(self, row: Row) -> bool:
        first_s, last_s = self._steady
        return row.phase == "measured" and first_s <= row.intended_s <= last_s

    def add(self, row: Row) -> None:
        """An ended request."""
        self.rows += 1
        self.outcomes[row.outcome] = self.outcomes.get(row.outcome, 0) + 1
        if row.outcome == "ok" and row.ttft_s is not None and len(self.recent) < _MOST_RECENT:
            self.recent.append((row.ttft_s, row.tpot_s))
        if not self.trouble:
            try:
                self._writer.writerow(cells(row))
            except OSError as error:
                self._failed(error)

    def flush(self) -> None:
        if not self.trouble:
            try:
                self._file.flush()
            except OSError as error:
                self._failed(error)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.trouble = self.trouble or f"rows cannot be written: {error.strerror or error}"
