"""A sweep's table and plots as one HTML file without anything from outside, and as CSV."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from loadgen.sim.fleet.figures import Figures
from loadgen.sweeps.plot import Series, line_plot

_PLOTS: Final = (
    ("ttft_mean_s", "TTFT, mean", "s"),
    ("ttft_p90_s", "TTFT, P90", "s"),
    ("tpot_p90_s", "TPOT, P90", "s"),
    ("attainment", "within both objectives", "share"),
    ("goodput_per_s", "good requests", "1/s"),
    ("hit", "prompt tokens reused", "share"),
    ("moved_gb", "moved", "GB"),
)
_STYLE: Final = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:980px;color:#222}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(430px,1fr));gap:1em}"
    "svg text{font:11px system-ui,sans-serif;fill:#333}svg .title{font-weight:600;font-size:13px}"
    ".grid{stroke:#ddd}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}"
)


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep. `why` says what could not be, where there are no figures."""

    value: float
    fleet: str
    figures: Figures | None
    why: str = ""

    def numbers(self) -> dict[str, float]:
        if self.figures is None:
            return {}
        return asdict(self.figures) | {"moved_gb": self.figures.moved_bytes / 1e9}


def as_csv(axis: str, points: Sequence[Point]) -> str:
    """A row per point; empty cells where it could not be."""
    names = [*Figures.__dataclass_fields__, "moved_gb"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([axis, "fleet", *names, "why"])
    for point in points:
        numbers = point.numbers()
        cells = [f"{numbers[name]:.6g}" if name in numbers else "" for name in names]
        writer.writerow([f"{point.value:g}", point.fleet, *cells, point.why])
    return text.getvalue()


def as_html(title: str, axis: str, notes: Sequence[str], points: Sequence[Point]) -> str:
    """Self-contained: styles and plots are in it."""
    plots = [line_plot(name, axis, unit, _series(points, field)) for field, name, unit in _PLOTS]
    paragraphs = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1>{paragraphs}"
        f'<div class="plots">{"".join(f"<div>{plot}</div>" for plot in plots)}</div>'
        f"{_table(axis, points)}</html>\n"
    )


def _series(points: Sequence[Point], field: str) -> list[Series]:
    fleets = list(dict.fromkeys(point.fleet for point in points))
    return [
        Series(
            fleet,
            tuple(
                (point.value, float(point.numbers()[field]))
                for point in points
                if point.fleet == fleet and point.figures is not None
            ),
        )
        for fleet in fleets
    ]


def _table(axis: str, points: Sequence[Point]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in (axis, "fleet", *_names()))
    rows = []
    for point in points:
        numbers = point.numbers()
        cells = [f"{numbers[field]:.4g}" if numbers else "" for field, _, _ in _PLOTS]
        told = [f"{point.value:g}", point.fleet, *cells, point.why]
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in told) + "</tr>")
    return f"<table><tr>{head}<th></th></tr>{''.join(rows)}</table>"


def _names() -> tuple[str, ...]:
    return tuple(f"{name} ({unit})" for _, name, unit in _PLOTS)
