"""Rows to the points of charts: percentiles in slices of time, load, curves, workers' work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from loadgen.reports.drawing import MOST_POINTS, Line
from loadgen.reports.run_files import Numbers, Rows
from loadgen.reports.verdicts import backlog

_SLICES: Final = 120
_LEAST_IN_SLICE: Final = 5
Points = list[tuple[float, float]]


def binned(rows: Rows, name: str) -> list[Line]:
    """Median, p90 and p99 (milliseconds) of answered rows, by when they were intended."""
    answered = rows.where(rows.ok & ~np.isnan(rows.numbers[name]))
    at, values = answered.numbers["intended_s"], answered.numbers[name] * 1000
    if not len(at):
        return []
    slices = max(1, min(_SLICES, len(at) // _LEAST_IN_SLICE))
    edges = np.linspace(float(at.min()), float(at.max()) + 1e-9, slices + 1)
    places = np.digitize(at, edges) - 1
    found: dict[str, Points] = {"p50": [], "p90": [], "p99": []}
    for place in range(slices):
        inside = values[places == place]
        if len(inside):
            middle = float((edges[place] + edges[place + 1]) / 2)
            for share, label in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
                value = float(np.quantile(inside, share, method="inverted_cdf"))
                found[label].append((middle, value))
    return [Line(label, points) for label, points in found.items()]


def load(rows: Rows) -> list[Line]:
    """Requests intended, answered and failed, per second."""
    intended = rows.numbers["intended_s"]
    ended = np.fmax(rows.numbers["last_s"], rows.numbers["sent_s"])
    last = float(np.nanmax(np.fmax(ended, intended)))
    first = float(intended.min())
    slices = max(1, min(_SLICES, len(rows) // _LEAST_IN_SLICE))
    edges = np.linspace(first, last + 1e-9, slices + 1)
    width = max(1e-9, float(edges[1] - edges[0]))
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()

    def rate(values: Numbers) -> Points:
        counted, _ = np.histogram(values[~np.isnan(values)], edges)
        return list(zip(middles, (counted / width).tolist(), strict=True))

    lines = [Line("intended", rate(intended)), Line("answered", rate(ended[rows.ok]))]
    failed = intended[~rows.ok]
    return [*lines, Line("not answered", rate(failed))] if len(failed) else lines


def open_(rows: Rows) -> list[Line]:
    """Requests under way."""
    times, counts = backlog(rows, _SLICES)
    return [Line("under way", list(zip(times.tolist(), counts.tolist(), strict=True)))]


def curve(values: Numbers) -> Points:
    """(milliseconds, share of values at most so large)."""
    ordered = np.sort(values[~np.isnan(values)])
    count = len(ordered)
    if not count:
        return []
    ranks = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int))
    return [(float(ordered[rank]) * 1000, (rank + 1) / count) for rank in ranks.tolist()]


def of_worker(looks: Sequence[Mapping[str, Any]], worker: str, kind: str) -> Points:
    """One worker's figure at each look at which it was there."""
    return [
        (float(look["at_s"]), float(look["workers"][worker][kind]))
        for look in looks
        if worker in look["workers"]
    ]


def mean_of_worker(looks: Sequence[Mapping[str, Any]], worker: str, kind: str) -> float:
    """Over the looks."""
    values = [value for _, value in of_worker(looks, worker, kind)]
    return sum(values) / len(values) if values else 0.0
