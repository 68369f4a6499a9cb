"""How long answers get: survival tables of finished lengths (algorithms, section 14).

64 buckets of equal ratio, old samples fade; a class with few samples borrows from a wider one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

BUCKETS: Final = 64
FADING: Final = 0.999
ENOUGH: Final = 200.0
_LONGEST: Final = 1 << 20
_RATIO: Final = _LONGEST ** (1 / (BUCKETS - 1))
_MOST_CLASSES: Final = 512
_UPPER: Final = tuple(_RATIO**bucket for bucket in range(BUCKETS))
_DEFAULT: Final = 256


class Survival:
    """One class: P(length > l), and quantiles of what is left after l tokens."""

    def __init__(self) -> None:
        self._counts = [0.0] * BUCKETS
        self._tail: list[float] | None = None
        self._quantiles: dict[float, float] = {}
        self.samples = 0.0

    def add(self, tokens: int) -> None:
        """One finished answer."""
        if not 0 < tokens <= _LONGEST:
            return
        self._counts = [FADING * count for count in self._counts]
        self._counts[_bucket(tokens)] += 1.0
        self.samples = FADING * self.samples + 1.0
        self._tail = None
        self._quantiles.clear()

    def overall(self, q: float) -> float:
        """Quantile of all lengths, remembered until the next sample."""
        found = self._quantiles.get(q)
        if found is None:
            found = self._quantiles[q] = self.quantile(q)
        return found

    def beyond(self, tokens: float) -> float:
        """P(length > tokens); 1 when nothing is known."""
        tail = self._tails()
        if tail[0] <= 0.0:
            return 1.0
        if tokens < 1.0:
            return 1.0
        place = min(float(BUCKETS - 1), math.log(tokens) / math.log(_RATIO))
        low = int(place)
        high = min(BUCKETS - 1, low + 1)
        share = place - low
        upper = [*tail[1:], 0.0]
        return ((1 - share) * upper[low] + share * upper[high]) / tail[0]

    def survives(self, more: float, after: float) -> float:
        """P(length > after + more | length > after)."""
        reached = self.beyond(after)
        return self.beyond(after + more) / reached if reached > 0.0 else 0.0

    def quantile(self, q: float, after: float = 0.0) -> float:
        """Tokens left at probability q for an answer that already has `after`."""
        reached = self.beyond(after)
        if reached <= 0.0:
            return 1.0
        for upper in _UPPER:
            if upper > after and self.beyond(upper) <= (1.0 - q) * reached:
                return max(1.0, upper - after)
        return float(_LONGEST)

    def _tails(self) -> list[float]:
        if self._tail is None:
            tail, total = [0.0] * BUCKETS, 0.0
            for bucket in range(BUCKETS - 1, -1, -1):
                total += self._counts[bucket]
                tail[bucket] = total
            self._tail = tail
        return self._tail


class Lengths:
    """Tables by (tenant, model), by model, and one for all. The least used class is forgotten."""

    def __init__(self) -> None:
        self._classes: OrderedDict[tuple[str, str], Survival] = OrderedDict()

    def add(self, tenant: str, model: str, tokens: int) -> None:
        """An answer finished with so many tokens."""
        for name in ((tenant, model), ("", model), ("", "")):
            table = self._classes.get(name)
            if table is None:
                table = self._classes[name] = Survival()
            self._classes.move_to_end(name)
            table.add(tokens)
            if name == ("", ""):
                break
        while len(self._classes) > _MOST_CLASSES:
            self._classes.popitem(last=False)

    def table(self, tenant: str, model: str) -> Survival | None:
        """The narrowest class with enough samples."""
        for name in ((tenant, model), ("", model), ("", "")):
            found = self._classes.get(name)
            if found is not None and found.samples >= ENOUGH * (1 - FADING * 0.2):
                return found
        return None

    def expected(self, tenant: str, model: str, hint: int, max_tokens: int) -> int:
        """Forecast of an answer's length: the hint, else the 60 % quantile, else 256."""
        table = None if hint > 0 else self.table(tenant, model)
        forecast = hint if hint > 0 else _DEFAULT if table is None else round(table.overall(0.6))
        return max(1, min(max_tokens, forecast))

    def shown(self) -> list[dict[str, object]]:
        """For people."""
        return [
            {
                "tenant": tenant or "all",
                "model": model or "all",
                "samples": round(table.samples, 1),
                "p50": round(table.quantile(0.5)),
                "p90": round(table.quantile(0.9)),
            }
            for (tenant, model), table in self._classes.items()
        ]


def _bucket(tokens: int) -> int:
    return min(BUCKETS - 1, math.ceil(math.log(tokens) / math.log(_RATIO) - 1e-9))
