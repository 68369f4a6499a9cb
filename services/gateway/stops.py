"""Finds stop strings in a stream of text pieces, wherever the pieces were cut.

The stop string that is complete first wins, so the result does not depend on the cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopRule:
    """Which strings end an answer."""

    stops: tuple[str, ...] = ()
    min_tokens: int = 0
    """The text of the first so many tokens ends nothing."""
    include: bool = False
    """The string that matched is shown."""


class StopMatcher:
    """Holds back only what may still become a stop string: at most the longest minus one."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """The text that can be shown now. After a match nothing more can."""
        if not self._stops:
            return text
        if self.matched:
            return ""
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            self.matched = True
            self._held = ""
            return text[: found[self._include]]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The stream ended without a match: what was held back is ordinary text."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Start and end of the stop that ends first; of two with one end, the longer."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                candidate = (start + len(stop), start)
                best = candidate if best is None else min(best, candidate)
        return None if best is None else (best[1], best[0])

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` with which some stop begins."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[len(text) - size :]
            if any(stop.startswith(tail) for stop in self._stops if len(stop) > size):
                return size
        return 0
