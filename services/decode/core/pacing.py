"""When a sequence's tokens came, and when its next one is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LENT: Final = 2.0
"""Targets after its last token that a sequence waits at most, however far ahead it is."""


@dataclass(slots=True)
class Pace:
    """Of the tokens that it drew without having to wait in between."""

    first_s: float
    last_s: float
    further: int = 0
    """Tokens after the first."""

    @classmethod
    def after(cls, known: Pace | None, now: float) -> Pace:
        """With a token that came now; a known one is carried on."""
        if known is None:
            return cls(now, now)
        known.last_s = now
        known.further += 1
        return known

    def due_s(self, target_s: float, mean: bool) -> float:
        """Of the next token: a target after the last one, or so many after the first as there are
        tokens since."""
        if not mean:
            return self.last_s + target_s
        ahead_s = self.first_s + target_s * (self.further + 1)
        return min(ahead_s, self.last_s + LENT * target_s)
