"""Decaying sums: how busy a pool, a link or a tenant has been in the last half minute or so."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Decaying:
    """Amount per second, exponentially averaged over `window_s`."""

    __slots__ = ("_seen_s", "_sum", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._sum = 0.0
        self._seen_s = -math.inf

    def add(self, amount: float, now: float) -> None:
        self._sum = self._left(now) + amount
        self._seen_s = max(now, self._seen_s)

    def per_s(self, now: float) -> float:
        return self._left(now) / self._window_s

    def _left(self, now: float) -> float:
        if self._sum == 0.0:
            return 0.0
        gone_s = now - self._seen_s
        return self._sum * math.exp(-gone_s / self._window_s) if gone_s > 0.0 else self._sum


class Rates(Generic[Key]):
    """One `Decaying` a key; the key that was silent longest is forgotten."""

    def __init__(self, window_s: float, most: int = 65_536) -> None:
        self._window_s = window_s
        self._most = most
        self._rates: OrderedDict[Key, Decaying] = OrderedDict()

    def add(self, key: Key, amount: float, now: float) -> None:
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = Decaying(self._window_s)
        rate.add(amount, now)
        self._rates.move_to_end(key)
        while len(self._rates) > self._most:
            self._rates.popitem(last=False)

    def per_s(self, key: Key, now: float) -> float:
        rate = self._rates.get(key)
        return 0.0 if rate is None else rate.per_s(now)

    def shares(self, now: float) -> dict[Key, float]:
        """Per second of all that are not yet negligible."""
        found = {key: rate.per_s(now) for key, rate in self._rates.items()}
        return {key: value for key, value in found.items() if value > 1e-6}
