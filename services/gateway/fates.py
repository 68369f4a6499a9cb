"""What became of the hints of a request: applied, or ignored and why. Told in the trace, in a
response header and in a counter, so that no hint is lost in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.gateway.core.events import Hints
from shared.wire.requests import Placement

APPLIED: Final = "applied"
CLIPPED: Final = "clipped"
NOT_PLACED: Final = "ignored:not_placed"
OVERRIDDEN: Final = "ignored:overridden"
"""Another worker was so much better that the preference did not decide."""
_AFFINITY_TERM: Final = "affinity_s"


@dataclass(frozen=True, slots=True)
class Fate:
    """One hint, where it was said, and what came of it."""

    hint: str
    dialect: str
    """header or body."""
    outcome: str

    @property
    def kind(self) -> str:
        """The outcome without a number: a closed set."""
        return CLIPPED if self.outcome.startswith(CLIPPED) else self.outcome


@dataclass(frozen=True, slots=True)
class Said:
    """All hints of a request, by where they were said, and what was passed on."""

    header: Hints
    body: Hints
    used: Hints

    def fates(self, placement: Placement | None) -> tuple[Fate, ...]:
        """What came of each: None, nothing was placed."""
        found: list[Fate] = []
        placed = APPLIED if placement is not None else NOT_PLACED
        if self.used.affinity_key:
            dialect = "header" if self.header.affinity_key else "body"
            found.append(Fate("affinity_key", dialect, _affinity(placement)))
        if self.body.expected_tokens:
            most = self.used.expected_tokens
            clipped = placement is not None and most < self.body.expected_tokens
            outcome = f"{CLIPPED}:{most}" if clipped else placed
            found.append(Fate("expected_tokens", "body", outcome))
        found += [
            Fate(name, "header", placed)
            for name in ("ttft_slo_s", "tpot_slo_s")
            if getattr(self.header, name)
        ]
        return tuple(found)


def told(fates: tuple[Fate, ...]) -> str:
    """For the response header."""
    return ";".join(f"{fate.hint}={fate.outcome}" for fate in fates)


def _affinity(placement: Placement | None) -> str:
    """The chosen candidate carries the preference among the terms of its score, or does not."""
    if placement is None:
        return NOT_PLACED
    chosen = next((one for one in placement.candidates if not one.lost), None)
    if chosen is None or _AFFINITY_TERM not in chosen.terms:
        return OVERRIDDEN
    return APPLIED
