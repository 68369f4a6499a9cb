"""What is said about the windows of one side. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.interference.windows import Window
from loadgen.ranks import nearest_rank


@dataclass(slots=True)
class Measured:
    """All windows of one side."""

    windows: list[Window] = field(default_factory=list)
    budget: Mapping[str, float] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """Gaps of all windows together; p99 also window by window, as least and most."""
        busy = [gap for window in self.windows for gap in window.busy_ms]
        quiet = [gap for window in self.windows for gap in window.quiet_ms]
        each = [percentile(window.busy_ms, 0.99) for window in self.windows]
        return {
            "budget_tokens": self.budget.get("mixed", 0.0),
            "itl_p50_ms": round(percentile(busy, 0.5), 1),
            "itl_p99_ms": round(percentile(busy, 0.99), 1),
            "itl_p99_ms_min": round(min(each), 1),
            "itl_p99_ms_max": round(max(each), 1),
            "itl_max_ms": round(max(busy), 1),
            "quiet_p50_ms": round(percentile(quiet, 0.5), 1),
            "quiet_p99_ms": round(percentile(quiet, 0.99), 1),
            "ttft_s": round(statistics.median(window.ttft_s for window in self.windows), 2),
            "gaps": len(busy),
            "windows": len(self.windows),
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed."""
    return nearest_rank(sorted(values), share)


def summary(
    found: Mapping[str, Measured], prompt_tokens: int, streams: int, cores: int
) -> dict[str, object]:
    """The last line of the bench. Ratios are of p99 gaps: whole prompts over each other side."""
    sides = {name: measured.figures() for name, measured in found.items()}
    whole = sides["whole"]["itl_p99_ms"]
    ratios = {
        name: round(whole / figures["itl_p99_ms"], 2)
        for name, figures in sides.items()
        if name != "whole"
    }
    return {
        "bench": "interference",
        "prompt_tokens": prompt_tokens,
        "streams": streams,
        "cores": cores,
        "whole_over": ratios,
        "sides": sides,
    }
