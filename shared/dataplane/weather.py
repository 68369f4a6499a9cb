"""How nasty the in-memory fabric is: chances per read, drawn from a seeded generator."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from enum import StrEnum


class Mishap(StrEnum):
    """What happens to one read."""

    NONE = "none"
    REFUSED = "refused"
    """The owner says no, whatever its guard thinks."""
    LATE = "late"
    """Nothing moves until the fabric is released, or the reader gives up."""
    TORN = "torn"
    """Half of the pages land, then nothing until the fabric is released."""
    LOST = "lost"
    """Half of the pages land, then the link breaks."""
    STRAGGLING = "straggling"
    """As TORN, and the rest lands *after* the reader gave up, until its link is closed: still
    before `read` raises."""
    UNSETTLED = "unsettled"
    """As TORN, and the link cannot be closed: `read` raises with `settled` False, and the rest
    lands at the next release, in whatever the pages are by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Chance of each mishap per read, and two habits that a correct reader never notices."""

    refused: float = 0.0
    late: float = 0.0
    torn: float = 0.0
    lost: float = 0.0
    straggling: float = 0.0
    unsettled: float = 0.0
    shuffled: bool = False
    """Pages land in random order."""
    twice: bool = False
    """Every page lands a second time before the read is reported."""


class Forecast:
    """Draws mishaps; scripted ones come first."""

    def __init__(self, weather: Weather, seed: int) -> None:
        self._weather = weather
        self._random = random.Random(seed)
        self._scripted: deque[Mishap] = deque()

    def script(self, mishaps: tuple[Mishap, ...]) -> None:
        self._scripted.extend(mishaps)

    def draw(self) -> Mishap:
        if self._scripted:
            return self._scripted.popleft()
        point = self._random.random()
        for mishap in Mishap:
            if mishap is Mishap.NONE:
                continue
            point -= float(getattr(self._weather, mishap.value))
            if point < 0:
                return mishap
        return Mishap.NONE

    def order(self, count: int) -> list[int]:
        """The order in which pages land; with `twice`, each index occurs twice."""
        landing = list(range(count)) * (2 if self._weather.twice else 1)
        if self._weather.shuffled:
            self._random.shuffle(landing)
        return landing
