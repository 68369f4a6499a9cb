"""Two runs side by side: differences with intervals, and a verdict that sees none inside the noise.

Requests of one run resemble their neighbours (they shared a queue), so whole stretches are drawn
again, not single requests (circular block bootstrap, Politis and Romano 1992); intervals are wide
enough for all figures together (Bonferroni). A difference must also outgrow what the runs drift
within themselves, and 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from loadgen.reports.run_files import Numbers, Rows
from loadgen.reports.slo import Slos

LEAST_ROWS: Final = 20
_LEAST_SHARE: Final = 0.01
_LEVEL: Final = 0.05
_RESAMPLES: Final = 400
_SECTIONS: Final = 6
_ALIKE: Final = 0.5
_AT_ONCE: Final = 2_000_000
"""Values drawn at a time."""

Places = np.ndarray[Any, np.dtype[np.int64]]
Statistic = Callable[[Numbers], Numbers]
"""Along the last axis."""


def _quantile(share: float) -> Statistic:
    def found(values: Numbers) -> Numbers:
        rank = max(0, math.ceil(share * values.shape[-1]) - 1)
        picked: Numbers = np.partition(values, rank, axis=-1)[..., rank]
        return picked

    return found


def _mean(values: Numbers) -> Numbers:
    found: Numbers = values.mean(axis=-1)
    return found


FIGURES: Final[tuple[tuple[str, str, Statistic, float], ...]] = (
    ("TTFT mean", "ttft_s", _mean, 0),
    ("TTFT p50", "ttft_s", _quantile(0.5), 0),
    ("TTFT p90", "ttft_s", _quantile(0.9), 100),
    ("TTFT p99", "ttft_s", _quantile(0.99), 1_000),
    ("TPOT mean", "tpot_s", _mean, 0),
    ("TPOT p50", "tpot_s", _quantile(0.5), 0),
    ("TPOT p90", "tpot_s", _quantile(0.9), 100),
    ("E2E p50", "e2e_s", _quantile(0.5), 0),
    ("E2E p90", "e2e_s", _quantile(0.9), 100),
)
"""Name, column, statistic, and the fewest rows with ten beyond it."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure of both runs; milliseconds, or a share."""

    name: str
    first: float
    second: float
    low: float
    high: float
    """Of second - first."""
    drift: float
    """How far the figure moves within a run (or within the pairs) by itself."""
    unit: str = "ms"

    @property
    def change(self) -> float:
        return self.second - self.first

    @property
    def shown(self) -> bool:
        """Whether it is a difference at all."""
        beyond_chance = self.low > 0 or self.high < 0
        floor = self.drift
        if self.unit == "ms":
            floor = max(floor, _LEAST_SHARE * abs(self.first))
        return beyond_chance and abs(self.change) > floor

    @property
    def verdict(self) -> str:
        if not self.shown:
            return "no difference shown"
        better = self.change < 0 if self.unit == "ms" else self.change > 0
        return f"B is {'better' if better else 'worse'}"

    def as_told(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "figure": self.name,
            "unit": self.unit,
            "a": round(self.first, 6),
            "b": round(self.second, 6),
            "change": round(self.change, 6),
            "interval": [round(self.low, 6), round(self.high, 6)],
            "drift": round(self.drift, 6),
            "verdict": self.verdict,
        }


def contrast(first: Rows, second: Rows, paired: bool, slos: Slos, seed: int = 0) -> list[Contrast]:
    """Of answered, measured rows. `paired`: both runs sent the same requests at the same times."""
    chance = np.random.default_rng(seed)
    margin = NormalDist().inv_cdf(1 - _LEVEL / (len(FIGURES) + bool(slos.each)) / 2)
    one, other = first.where(first.ok), second.where(second.ok)
    if paired:
        one, other = _pairs(one, other)
    found = []
    for name, column, statistic, least in FIGURES:
        a, b = one.numbers[column] * 1000, other.numbers[column] * 1000
        if paired:
            there = ~(np.isnan(a) | np.isnan(b))
            a, b = a[there], b[there]
        else:
            a, b = a[~np.isnan(a)], b[~np.isnan(b)]
        if min(len(a), len(b)) >= max(LEAST_ROWS, least):
            found.append(_one(name, (a, b), statistic, paired, margin, chance))
    judged = [rows.where(rows.words["outcome"] != "cancelled") for rows in (first, second)]
    if slos.each and min(len(rows) for rows in judged) >= LEAST_ROWS:
        met = [slos.met(rows).astype(np.float64) for rows in judged]
        together = paired and len(met[0]) == len(met[1])
        share = _one(
            "within " + slos.text, (met[0], met[1]), _mean, together, margin, chance, "share"
        )
        found.append(share)
    return found


def _one(
    name: str,
    pair: tuple[Numbers, Numbers],
    statistic: Statistic,
    paired: bool,
    margin: float,
    chance: np.random.Generator,
    unit: str = "ms",
) -> Contrast:
    a, b = pair
    first, second = float(statistic(a)), float(statistic(b))
    length = _stretch(b - a) if paired else max(_stretch(a), _stretch(b))
    shifts: list[Numbers] = []
    at_once = max(1, _AT_ONCE // max(len(a), len(b)))
    for begun in range(0, _RESAMPLES, at_once):
        count = min(at_once, _RESAMPLES - begun)
        places = _drawn(len(a), length, count, chance)
        others = places if paired else _drawn(len(b), length, count, chance)
        shifts.append(statistic(b[others]) - statistic(a[places]))
    stretches = min(len(a), len(b)) / length
    error = _student(margin, stretches - 1) * float(np.concatenate(shifts).std(ddof=1))
    if (_alike(b - a) if paired else max(_alike(a), _alike(b))) > _ALIKE:
        rough = _between_sections(a, b, statistic, paired)
        error = max(error, _student(margin, _SECTIONS - 1) * rough)
    change = second - first
    drift = _drift(a, b, statistic, paired)
    return Contrast(name, first, second, change - error, change + error, drift, unit)


def _stretch(values: Numbers) -> int:
    """How many neighbours are drawn together: twice as far as a value remembers others (by its
    correlation with the next), at least n^(1/3), and never so many that fewer than six are left."""
    count, alike = len(values), _alike(values)
    memory = (1 + alike) / (1 - alike)
    least = math.ceil(math.cbrt(count))
    return max(1, min(count // _SECTIONS, max(least, math.ceil(2 * memory))))


def _alike(values: Numbers) -> float:
    """Correlation of a value with the next, 0..0.98."""
    centred = values - values.mean()
    power = float((centred**2).sum())
    alike = float((centred[1:] * centred[:-1]).sum()) / power if power > 0 else 0.0
    return min(max(alike, 0.0), 0.98)


def _between_sections(a: Numbers, b: Numbers, statistic: Statistic, paired: bool) -> float:
    """Standard error of the change from six sections of each run: rough, but it does not trust
    what long waves hide from drawing again."""
    first, second = (
        np.asarray([float(statistic(section)) for section in np.array_split(values, _SECTIONS)])
        for values in (a, b)
    )
    parts = [second - first] if paired else [first, second]
    return math.sqrt(sum(float(part.var(ddof=1)) / _SECTIONS for part in parts))


def _student(normal: float, freedom: float) -> float:
    """Student's t for a normal quantile (Cornish and Fisher's expansion): few stretches tell the
    spread badly."""
    cube, fifth = normal**3, normal**5
    first = (cube + normal) / (4 * freedom)
    return normal + first + (5 * fifth + 16 * cube + 3 * normal) / (96 * freedom**2)


def _drawn(count: int, length: int, times: int, chance: np.random.Generator) -> Places:
    """`times` drawings: places of stretches that wrap around, as many as there are rows."""
    starts = chance.integers(0, count, size=(times, math.ceil(count / length)))
    places = (starts[:, :, None] + np.arange(length)) % count
    found: Places = places.reshape(times, -1)[:, :count]
    return found


def _drift(a: Numbers, b: Numbers, statistic: Statistic, paired: bool) -> float:
    """Half of what the figure moves from the first half of a run to its second; of pairs, half of
    what their difference moves."""

    def halves(values: Numbers) -> tuple[float, float]:
        middle = len(values) // 2
        return float(statistic(values[:middle])), float(statistic(values[middle:]))

    (a1, a2), (b1, b2) = halves(a), halves(b)
    if paired:
        return abs((b2 - a2) - (b1 - a1)) / 2
    return max(abs(a2 - a1), abs(b2 - b1)) / 2


def _pairs(one: Rows, other: Rows) -> tuple[Rows, Rows]:
    """Rows of requests that both runs answered."""

    def keys(rows: Rows) -> Numbers:
        found: Numbers = rows.numbers["step"] * 2.0**32 + rows.numbers["number"]
        return found

    _, left, right = np.intersect1d(keys(one), keys(other), return_indices=True)
    return _taken(one, left), _taken(other, right)


def _taken(rows: Rows, places: Places) -> Rows:
    mask = np.zeros(len(rows), np.bool_)
    mask[places] = True
    return rows.where(mask)


def same_schedule(documents: Sequence[dict[str, Any]]) -> bool:
    """Whether the runs can be compared request by request."""
    digests = {str(document.get("schedule_digest") or "") for document in documents}
    return len(digests) == 1 and "" not in digests
