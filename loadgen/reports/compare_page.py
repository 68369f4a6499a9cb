"""A comparison as one file: the verdict, then a bar for each difference and its interval."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any, Final

from loadgen.reports.page import table, whole

_WIDTH, _ROW = 640, 30
_MIDDLE, _HALF = 380.0, 240.0
_LEFT: Final = 8


def render(found: Mapping[str, Any], extra: str = "") -> str:
    """`extra`: more HTML, below the table."""
    first, second = found["runs"]
    kind = "request by request" if found["paired"] else "as two samples"
    notes = "".join(f'<div class="warn">{html.escape(note)}</div>' for note in found["notes"])
    return whole(
        f"{first['id']} and {second['id']}",
        (
            f"<h1>{html.escape(first['id'])} and {html.escape(second['id'])}</h1>",
            f'<div class="{_kind(found)}"><b>Verdict.</b> {html.escape(found["verdict"])}</div>',
            notes,
            f"<p>A: {html.escape(first['said'])}. B: {html.escape(second['said'])}. Compared "
            f"{kind}; intervals of 95 % for all figures together, from drawing whole stretches of "
            "the runs again. A difference that chance, drift within a run or 1 % could explain is "
            "none.</p>",
            f"<figure>{_bars(found)}</figure>",
            _table(found),
            extra,
        ),
    )


def _kind(found: Mapping[str, Any]) -> str:
    return "bad" if found["verdict"].startswith("none") else "good"


def _table(found: Mapping[str, Any]) -> str:
    lines = []
    for one in found["figures"]:
        scale = 100.0 if one["unit"] == "share" else 1.0
        unit = "%" if one["unit"] == "share" else "ms"
        low, high = (edge * scale for edge in one["interval"])
        cells = [f"{one[name] * scale:.2f}" for name in ("a", "b", "change")]
        lines.append(
            [
                f"{html.escape(one['figure'])}, {unit}",
                *cells,
                f"{low:+.2f} to {high:+.2f}",
                html.escape(one["verdict"]),
            ]
        )
    return table(("", "A", "B", "B - A", "interval", "verdict"), lines, "Differences")


def _bars(found: Mapping[str, Any]) -> str:
    """Relative to A, so that all figures share one scale."""
    figures = [one for one in found["figures"] if one["a"]]
    widest = max((abs(edge / one["a"]) for one in figures for edge in one["interval"]), default=0.0)
    scale = _HALF / (widest or 1.0)
    height = 30 + _ROW * len(figures)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Differences in % of A">',
        f'<text x="{_LEFT}" y="14" class="title">B - A, percent of A (left: B is less)</text>',
        f'<path class="grid" d="M{_MIDDLE} 22V{height}"/>',
    ]
    for place, one in enumerate(figures):
        y = 36 + place * _ROW
        low, high = (_MIDDLE + edge / one["a"] * scale for edge in one["interval"])
        at, colour = (
            _MIDDLE + one["change"] / one["a"] * scale,
            1 if "B is" in one["verdict"] else 7,
        )
        parts += [
            f'<text x="{_LEFT}" y="{y + 4}">{html.escape(one["figure"])} '
            f"{one['change'] / one['a']:+.1%}</text>",
            f'<path class="line s{colour}" d="M{low:.1f} {y}H{high:.1f}"/>',
            f'<circle class="s{colour}" cx="{at:.1f}" cy="{y}" r="4"/>',
        ]
    return "".join((*parts, "</svg>"))
