"""What the spans and stamps of a bench mean: shares, rates, medians. Knows no cluster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Interval = tuple[int, int]


@dataclass(slots=True)
class Measured:
    """All rounds of one prompt length."""

    prompt_tokens: int = 0
    colocated_ttft_ms: list[float] = field(default_factory=list)
    split_ttft_ms: list[float] = field(default_factory=list)
    transfer_ms: list[float] = field(default_factory=list)
    hidden_share: list[float] = field(default_factory=list)
    gigabytes_per_s: list[float] = field(default_factory=list)
    copy_gigabytes_per_s: list[float] = field(default_factory=list)
    transfer_bytes: int = 0
    transport: str = ""

    def figures(self) -> dict[str, object]:
        """Medians, and the spread of the ratio that matters."""
        ratios = [
            split / together
            for split, together in zip(self.split_ttft_ms, self.colocated_ttft_ms, strict=True)
        ]
        return {
            "prompt_tokens": self.prompt_tokens,
            "ttft_colocated_ms": median(self.colocated_ttft_ms),
            "ttft_1p1d_ms": median(self.split_ttft_ms),
            "ttft_ratio": median(ratios),
            "ttft_ratio_min": round(min(ratios), 3),
            "ttft_ratio_max": round(max(ratios), 3),
            "transfer_bytes": self.transfer_bytes,
            "transfer_ms": median(self.transfer_ms),
            "hidden_share": median(self.hidden_share),
            "transfer_gb_per_s": median(self.gigabytes_per_s),
            "copy_gb_per_s": median(self.copy_gigabytes_per_s),
        }


def covered_ns(intervals: Sequence[Interval]) -> int:
    """Length of the union."""
    total, end = 0, 0
    for begin, finish in sorted(intervals):
        total += max(0, finish - max(begin, end))
        end = max(end, finish)
    return total


def hidden_ns(transfers: Sequence[Interval], compute: Sequence[Interval]) -> int:
    """How much of the transfers lay inside the span from the first to the last compute instant."""
    begin, end = min(c[0] for c in compute), max(c[1] for c in compute)
    inside = [(max(t[0], begin), min(t[1], end)) for t in transfers]
    return covered_ns([(a, b) for a, b in inside if b > a])


def read_trace(spans: Sequence[Mapping[str, Any]], into: Measured) -> None:
    """Take transfer and prefill figures of one disaggregated request from its spans."""
    pulls = [span for span in spans if span["name"] == "transfer.pull"]
    transfers = [(span["start_ns"], span["end_ns"]) for span in pulls]
    chunks = [(s["start_ns"], s["end_ns"]) for s in spans if s["name"] == "prefill.chunk"]
    moved = sum(int(span["attributes"]["baton.transfer.bytes_raw"]) for span in pulls)
    busy_ns = covered_ns(transfers)
    into.transfer_bytes = moved
    into.transfer_ms.append(busy_ns / 1e6)
    into.hidden_share.append(hidden_ns(transfers, chunks) / busy_ns)
    into.gigabytes_per_s.append(moved / busy_ns)
    into.transport = str(pulls[0]["attributes"]["baton.transfer.transport"])


def copy_rate(size_bytes: int) -> float:
    """GB/s of one plain copy between two touched host buffers."""
    source = np.ones(size_bytes, dtype=np.uint8)
    target = np.full(size_bytes, 2, dtype=np.uint8)  # touched: zeros would be mapped lazily
    begun_s = time.perf_counter()
    np.copyto(target, source)
    return size_bytes / (time.perf_counter() - begun_s) / 1e9


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)
