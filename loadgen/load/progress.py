"""The line that shows how a run goes: sent, ended, running percentiles. A terminal sees one line
that changes, a log a new one every ten seconds.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from loadgen.load.histogram import Histogram

_LOG_EVERY_S: Final = 10.0


class Progress:
    """Fed by what client processes tell; knows no request."""

    def __init__(self, planned: int, name: str = "", quiet: bool = False) -> None:
        self._planned = planned
        self._name = name
        self._quiet = quiet
        self._told: dict[int, dict[str, Any]] = {}
        self._ttft, self._tpot = Histogram(), Histogram()
        self._began_s = time.monotonic()
        self._shown_s = self._began_s
        self._terminal = sys.stderr.isatty()

    def tick(self, process: int, told: dict[str, Any]) -> None:
        """What one process tells."""
        self._told[process] = told
        for ttft_s, tpot_s in told.get("recent", ()):
            self._ttft.add(ttft_s)
            if tpot_s is not None:
                self._tpot.add(tpot_s)
        now_s = time.monotonic()
        if self._quiet or (not self._terminal and now_s - self._shown_s < _LOG_EVERY_S):
            return
        self._shown_s = now_s
        end = "" if self._terminal else "\n"
        start = "\r\x1b[K" if self._terminal else ""
        print(start + self.line(), end=end, file=sys.stderr, flush=True)

    def line(self) -> str:
        """Of everything told so far."""
        sent = sum(told["sent"] for told in self._told.values())
        running = sum(told["running"] for told in self._told.values())
        outcomes: dict[str, int] = {}
        for told in self._told.values():
            for name, count in told["outcomes"].items():
                outcomes[name] = outcomes.get(name, 0) + count
        bad = sum(count for name, count in outcomes.items() if name != "ok")
        parts = [
            f"{self._name}{time.monotonic() - self._began_s:6.0f} s",
            f"{sent}/{self._planned} sent",
            f"{running} running",
            f"{outcomes.get('ok', 0)} ok",
            f"{bad} not",
            f"TTFT {_pair(self._ttft)}",
            f"TPOT {_pair(self._tpot)}",
        ]
        return "  ".join(parts)

    def close(self) -> None:
        if self._terminal and not self._quiet and self._told:
            print(file=sys.stderr, flush=True)


def _pair(histogram: Histogram) -> str:
    middle, late = histogram.quantile(0.5), histogram.quantile(0.99)
    if middle is None or late is None:
        return "-"
    return f"p50 {middle * 1000:.1f} p99 {late * 1000:.1f} ms"
