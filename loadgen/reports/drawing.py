"""Charts as SVG text for a page that needs nothing else: lines over time, curves, bars, stacks.

Numbers in, text out. However many values there were, a line has at most 400 points.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 34, 40
MOST_POINTS: Final = 400
_BAR: Final = 26
SERIES: Final = 8
"""Colours of the style sheet: classes s0 … s7."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """What a direction means. `least`: the smallest upper end."""

    name: str
    log: bool = False
    least: float = 0.0


def line_chart(title: str, x: Axis, y: Axis, lines: Sequence[Line], dots: bool = False) -> str:
    """One `<svg>`; the y axis begins at 0."""
    shown = [Line(line.name, thinned(line.points)) for line in lines if line.points]
    points = [point for line in shown for point in line.points]
    across = _Scale.over([px for px, _ in points], x.log)
    top = round_up(max([y.least, *(py for _, py in points)], default=1.0))
    parts = [_open(title, _HEIGHT), _words(_LEFT, 14, title, "start", "title")]
    for step in range(5):
        value = top * step / 4
        at = _down(value, top)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_words(_LEFT - 6, at + 4, plain(value), "end"))
    bottom = _HEIGHT - _BOTTOM + 15
    parts += [_words(across.at(at), bottom, plain(at), "middle") for at in across.ticks()]
    parts.append(_words((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, x.name, "middle"))
    parts.append(_words(_WIDTH - _RIGHT, 14, y.name, "end"))
    for place, line in enumerate(shown):
        path = " ".join(f"{across.at(px):.1f},{_down(py, top):.1f}" for px, py in line.points)
        parts.append(f'<polyline class="line s{place % SERIES}" points="{path}"/>')
        if dots:
            parts += [
                f'<circle class="s{place % SERIES}" cx="{across.at(px):.1f}" '
                f'cy="{_down(py, top):.1f}" r="3"/>'
                for px, py in line.points
            ]
        parts += _legend(place, line.name)
    return "".join((*parts, "</svg>"))


def stacked_bar(
    title: str, unit: str, bars: Sequence[tuple[str, Sequence[tuple[str, float]]]]
) -> str:
    """Horizontal bars, each a name and its consecutive parts."""
    names = list(dict.fromkeys(name for _, parts in bars for name, _ in parts))
    most = max((sum(value for _, value in parts) for _, parts in bars), default=0.0) or 1.0
    told_names = [name for name in names if any(v > 0 for _, p in bars for n, v in p if n == name)]
    legend = 16 * -(-len(told_names) // 4)
    height = 30 + (_BAR + 10) * len(bars) + 8 + legend
    drawn = [_open(title, height), _words(4, 14, f"{title}, {unit}", "start", "title")]
    for place, name in enumerate(told_names):
        x, y = 130 + place % 4 * 105, height - legend + place // 4 * 16 + 4
        drawn.append(f'<rect class="s{names.index(name) % SERIES}" x="{x}" y="{y}" width="10" '
                     'height="8"/>')  # fmt: skip
        drawn.append(_words(x + 14, y + 8, name, "start"))
    for row, (name, parts) in enumerate(bars):
        top, at = 28 + row * (_BAR + 10), 130.0
        drawn.append(_words(124, top + 17, name, "end"))
        for part, value in parts:
            wide = value / most * (_WIDTH - 150)
            told = html.escape(f"{part}: {value:.4g} {unit}")
            colour = names.index(part) % SERIES
            drawn.append(
                f'<rect class="s{colour}" x="{at:.1f}" y="{top}" width="{max(wide, 0):.1f}" '
                f'height="{_BAR}"><title>{told}</title></rect>'
            )
            at += wide
    return "".join((*drawn, "</svg>"))


def plain(value: float) -> str:
    """Without powers of ten: 0.25, 17.5, 40 000."""
    if abs(value) >= 1_000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MOST_POINTS of them, evenly taken, the last among them."""
    if len(points) <= MOST_POINTS:
        return list(points)
    last = len(points) - 1
    return [points[round(last * step / (MOST_POINTS - 1))] for step in range(MOST_POINTS)]


def round_up(value: float) -> float:
    """1, 2, 2.5, 4 or 5 times a power of ten, not below it."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 4, 5, 10) if step * power >= value * 0.999999)


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], log: bool) -> _Scale:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if log and low > 0:
            return cls(low, high if high > low else low * 10, True)
        return cls(min(low, 0.0), high if high > 0 else 1.0, False)

    def at(self, value: float) -> float:
        """The pixel."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> list[float]:
        if not self.log:
            return [self.low + (self.high - self.low) * step / 5 for step in range(6)]
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        tens = [10.0**power for power in range(first, last + 1)]
        return tens if len(tens) > 1 else [self.low, self.high]


def _open(title: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-label="{html.escape(title, quote=True)}">'
    )


def _legend(place: int, name: str) -> list[str]:
    x, y = _LEFT + 6 + (place % 4) * 125, _TOP - 10 + (place // 4) * 13
    return [
        f'<rect class="s{place % SERIES}" x="{x}" y="{y - 4}" width="10" height="4"/>',
        _words(x + 14, y + 1, name, "start"),
    ]


def _down(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM - 8)


def _words(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    cls = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{cls}>{html.escape(text)}</text>'
