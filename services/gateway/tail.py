"""Which traces are among the slowest of their time: as a whole, or to their first token."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Final

REMEMBERED: Final = 2_000
SLOWEST: Final = 0.01


class Tail:
    """Compares each trace with the latest two thousand before it."""

    def __init__(self) -> None:
        self._whole, self._first = _Latest(), _Latest()

    def slow(self, rows: Sequence[sqlite3.Row]) -> set[str]:
        """Ids of those that are among the slowest 1 %. Of a few, the slowest one."""
        for row in rows:
            self._whole.add(row["end_ns"] - row["start_ns"])
            if row["ttft_ns"] is not None:
                self._first.add(row["ttft_ns"])
        return {
            row["trace_id"]
            for row in rows
            if self._whole.is_high(row["end_ns"] - row["start_ns"])
            or (row["ttft_ns"] is not None and self._first.is_high(row["ttft_ns"]))
        }


class _Latest:
    """The latest values, also in order of size."""

    def __init__(self) -> None:
        self._values: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, value: int) -> None:
        self._values.append(value)
        insort(self._sorted, value)
        if len(self._values) > REMEMBERED:
            oldest = self._values.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]

    def is_high(self, value: int) -> bool:
        """Fewer than 1 % (at least one) lie above or beside it; equal values are none."""
        beside = len(self._sorted) - bisect_left(self._sorted, value)
        return beside <= max(1, int(len(self._sorted) * SLOWEST))
