"""Recursive least squares that one mad sample, a NaN or an idle week cannot spoil.

Learns factors of a given profile: y = sum of factor_i * part_i, all factors 1 at first and held
within bounds. Robust (Huber): a residual far outside the usual spread counts as one at its edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

FORGETTING: Final = 0.995
_EDGE: Final = 2.0
"""Usual spreads beyond which a residual is cut."""
_SPREAD_SHARE: Final = 0.05
_VARIANCE: Final = 0.05
_MOST_VARIANCE: Final = 1000.0
_CUTS_UNTIL_BELIEVED: Final = 12


class FactorFit:
    """Factors of `len(bounds)` parts. Scale-free: each sample is divided by its expectation."""

    def __init__(
        self,
        bounds: Sequence[tuple[float, float]],
        start: Sequence[float],
        variances: Sequence[float] = (),
    ) -> None:
        """`variances`: how far each factor may be from its start, squared."""
        self._bounds = tuple(bounds)
        self._start_variances = tuple(variances) or (_VARIANCE,) * len(bounds)
        self.factors = list(start)
        self._spread = 0.2
        self._cuts = 0
        self._reset()
        self.samples = 0
        self.refused = 0

    def add(self, parts: Sequence[float], seconds: float) -> float | None:
        """Learn from one measurement. log(measured / expected), or None when it was no number."""
        expected = self.predict(parts)
        if not _sound(parts) or not (0.0 < seconds < 1e6) or expected <= 0.0:
            self.refused += 1
            return None
        x = [part / expected for part in parts]
        residual = seconds / expected - 1.0
        self._learn(x, self._clipped(residual))
        self.samples += 1
        return math.log(seconds / expected)

    def predict(self, parts: Sequence[float]) -> float:
        """Seconds."""
        return sum([factor * part for factor, part in zip(self.factors, parts, strict=True)])

    def loosen(self) -> None:
        """The world has changed: the next samples count more."""
        self._reset()
        self._spread = 0.2

    def _clipped(self, residual: float) -> float:
        """Cut at the edge of the usual spread; many cuts in a row are no outliers."""
        edge = _EDGE * max(self._spread, _SPREAD_SHARE)
        self._cuts = self._cuts + 1 if abs(residual) > edge else 0
        if self._cuts > _CUTS_UNTIL_BELIEVED:
            self._spread = min(4.0, abs(residual))
            return residual
        cut = max(-edge, min(edge, residual))
        self._spread += 0.05 * (abs(cut) - self._spread)
        return cut

    def _learn(self, x: list[float], residual: float) -> None:
        size, variance = range(len(x)), self._variance
        px = [sum([v * part for v, part in zip(row, x, strict=True)]) for row in variance]
        scale = FORGETTING + sum([part * p for part, p in zip(x, px, strict=True)])
        for i in size:
            low, high = self._bounds[i]
            moved = self.factors[i] + px[i] / scale * residual
            self.factors[i] = max(low, min(high, moved))
        for i in size:
            for j in range(i + 1):
                left = (variance[i][j] - px[i] * px[j] / scale) / FORGETTING
                left = max(-_MOST_VARIANCE, min(_MOST_VARIANCE, left))
                variance[i][j] = variance[j][i] = left
        if max([variance[i][i] for i in size]) >= _MOST_VARIANCE:
            self._reset()

    def _reset(self) -> None:
        size = len(self._bounds)
        self._variance = [
            [self._start_variances[i] if i == j else 0.0 for j in range(size)] for i in range(size)
        ]


class Drift:
    """Two-sided cumulative sum (Page) of log(measured / expected): tells a lasting change from
    noise. `alarms` counts; each alarm starts the sums anew."""

    def __init__(self, slack: float = 0.1, threshold: float = 4.0) -> None:
        self._slack = slack
        self._threshold = threshold
        self._up = 0.0
        self._down = 0.0
        self.alarms = 0
        self.mean = 0.0
        """Of the last few dozen: 0.1 means that things take about 10 % longer than expected."""

    def add(self, error: float) -> bool:
        """True when a change is certain."""
        error = max(-1.0, min(1.0, error))
        self.mean += 0.05 * (error - self.mean)
        self._up = max(0.0, self._up + error - self._slack)
        self._down = max(0.0, self._down - error - self._slack)
        if max(self._up, self._down) < self._threshold:
            return False
        self._up = self._down = 0.0
        self.alarms += 1
        return True


def _sound(parts: Sequence[float]) -> bool:
    return all(math.isfinite(part) and part >= 0.0 for part in parts)
