"""Line plots as SVG text: axes with round ticks, a line and a legend entry per series.

Numbers in, text out; knows nothing of simulation.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_WIDTH, _HEIGHT = 460, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 30, 44
_COLOURS: Final = ("#4269d0", "#d1495b", "#2e8b57", "#b8860b", "#7b4ea3", "#4d4d4d")
_TICKS: Final = 5
_WIDE: Final = 16.0
"""Values further apart than this get a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line."""

    name: str
    points: tuple[tuple[float, float], ...]


def line_plot(title: str, x_name: str, y_name: str, lines: Sequence[Series]) -> str:
    """One `<svg>`. The y axis begins at 0; x is logarithmic where it spans much."""
    xs = sorted({x for line in lines for x, _ in line.points})
    highest = max((y for line in lines for _, y in line.points), default=0.0)
    top = _round_up(highest)
    scale = _Scale.over(xs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{html.escape(title)}</title>",
        _text(_WIDTH / 2, 16, title, "middle", "title"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, x_name, "middle"),
        _text(4, _TOP - 8, y_name, "start"),
    ]
    for step in range(_TICKS + 1):
        value = top * step / _TICKS
        y = _y(value, top)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{value:.3g}", "end"))
    parts += [_text(scale.at(x), _HEIGHT - _BOTTOM + 16, f"{x:g}", "middle") for x in xs]
    for place, line in enumerate(lines):
        parts += _drawn(line, _COLOURS[place % len(_COLOURS)], scale, top, place)
    return "".join((*parts, "</svg>"))


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, xs: Sequence[float]) -> _Scale:
        low, high = (xs[0], xs[-1]) if xs else (0.0, 1.0)
        log = low > 0 and high / low > _WIDE
        return cls(low, high, log)

    def at(self, x: float) -> float:
        """The pixel."""
        low, high = (math.log(v) if self.log else v for v in (self.low, self.high))
        value = math.log(x) if self.log else x
        share = (value - low) / (high - low) if high > low else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _drawn(line: Series, colour: str, scale: _Scale, top: float, place: int) -> list[str]:
    spots = [(scale.at(x), _y(y, top)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    legend_x = _LEFT + 8 + place * 110
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots),
        f'<rect x="{legend_x}" y="{_TOP - 8}" width="10" height="10" fill="{colour}"/>',
        _text(legend_x + 14, _TOP + 1, line.name, "start"),
    ]


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM - 10)


def _round_up(value: float) -> float:
    """1, 2 or 5 times a power of ten."""
    if not value > 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    cls = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{cls}>{html.escape(text)}</text>'
