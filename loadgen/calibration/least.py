"""Least squares over a few columns, no coefficient below zero.

Columns are scaled first; one whose coefficient would be negative is left out and the rest is fitted
again, which is enough for the two or three columns of a price.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_TINY: Final = 1e-12


def fit(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> tuple[float, ...]:
    """A coefficient per column. Rows weigh by 1 / wanted, so that errors count as shares.
    Raises ValueError without rows."""
    if not rows:
        raise ValueError("nothing to fit")
    width = len(rows[0])
    weights = [1.0 / max(value, _TINY) for value in wanted]
    scales = [max(abs(row[c]) for row in rows) or 1.0 for c in range(width)]
    active = list(range(width))
    while active:
        found = _solve(rows, wanted, weights, scales, active)
        worst = min(range(len(active)), key=found.__getitem__)
        if found[worst] >= 0:
            by_column = dict(zip(active, found, strict=True))
            return tuple(by_column.get(c, 0.0) / scales[c] for c in range(width))
        del active[worst]
    return (0.0,) * width


def _solve(
    rows: Sequence[Sequence[float]],
    wanted: Sequence[float],
    weights: Sequence[float],
    scales: Sequence[float],
    active: Sequence[int],
) -> list[float]:
    """Normal equations by elimination; a column that says nothing new gets 0."""
    scaled = [
        [row[c] / scales[c] * weight for c in active]
        for row, weight in zip(rows, weights, strict=True)
    ]
    target = [value * weight for value, weight in zip(wanted, weights, strict=True)]
    size = len(active)
    left = [[sum(r[i] * r[j] for r in scaled) for j in range(size)] for i in range(size)]
    right = [sum(r[i] * t for r, t in zip(scaled, target, strict=True)) for i in range(size)]
    least = _TINY * max(left[i][i] for i in range(size))
    for i in range(size):
        if left[i][i] <= least:
            left[i] = [float(i == j) for j in range(size)]
            right[i] = 0.0
            continue
        for k in range(i + 1, size):
            share = left[k][i] / left[i][i]
            left[k] = [a - share * b for a, b in zip(left[k], left[i], strict=True)]
            right[k] -= share * right[i]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = right[i] - sum(left[i][j] * found[j] for j in range(i + 1, size))
        found[i] = rest / left[i][i]
    return found
