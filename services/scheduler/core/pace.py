"""How much comes to the pool a second, from placements alone.

Averages decay, and are corrected for the time that was seen: they are right from the first second
on.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from shared.ids import WorkerId

_LEAST_SHARE: Final = 0.05
"""Of the window: two requests within a millisecond are no thousand a second."""
_MOST: Final = 65_536


class Pace:
    """Requests, and their work, averaged over `window_s`; nothing before anything came."""

    __slots__ = ("_begun_s", "_count", "_seen_s", "_window_s", "_work_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._begun_s = self._seen_s = math.inf
        self._count = self._work_s = 0.0

    def add(self, work_s: float, now: float) -> None:
        """One request that takes so much work."""
        left = self._left(now)
        self._begun_s = min(self._begun_s, now)
        self._count = self._count * left + 1.0
        self._work_s = self._work_s * left + work_s
        self._seen_s = now

    def per_s(self, now: float) -> float:
        """Requests a second."""
        return self._count * self._left(now) / self._span_s(now)

    def busy(self, now: float) -> float:
        """Seconds of work a second."""
        return self._work_s * self._left(now) / self._span_s(now)

    def _left(self, now: float) -> float:
        gone_s = now - self._seen_s
        return math.exp(-gone_s / self._window_s) if gone_s > 0.0 else 1.0

    def _span_s(self, now: float) -> float:
        age_s = now - self._begun_s
        share = 1.0 - math.exp(-age_s / self._window_s) if age_s > 0.0 else 0.0
        return self._window_s * (share if share > _LEAST_SHARE else _LEAST_SHARE)


class Paces:
    """One `Pace` a worker; the one that was silent longest is forgotten."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._paces: OrderedDict[WorkerId, Pace] = OrderedDict()

    def add(self, worker: WorkerId, work_s: float, now: float) -> None:
        """One request that takes so much work there."""
        pace = self._paces.get(worker)
        if pace is None:
            pace = self._paces[worker] = Pace(self._window_s)
        pace.add(work_s, now)
        self._paces.move_to_end(worker)
        while len(self._paces) > _MOST:
            self._paces.popitem(last=False)

    def per_s(self, worker: WorkerId, now: float) -> float:
        """Requests a second that go there."""
        pace = self._paces.get(worker)
        return 0.0 if pace is None else pace.per_s(now)

    def busy(self, worker: WorkerId, now: float) -> float:
        """Seconds of work a second that go there."""
        pace = self._paces.get(worker)
        return 0.0 if pace is None else pace.busy(now)
