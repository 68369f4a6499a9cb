"""How many prompt tokens the next step may take: as many as the time that running sequences can
spare. Sarathi-Serve's stall-free batching with deadlines in place of one number (Niyama,
arXiv 2503.22562).

    gap     a sequence's next token is due one target after its last
    mean    ... so many targets after its first as it has tokens since: whoever is ahead lends

    tokens  of a step: the most, in whole tiles, that end by the cost model before the earliest due
"""

from __future__ import annotations

from collections.abc import Sequence as Run
from typing import Final

from services.decode.core.sequences import Sequence
from shared.costs import Costs, mixed_s

POLICIES: Final = ("fixed", "gap", "mean")
TILE: Final = 64
"""Tokens of a step end on such a border: those beyond it would cost as much as a whole tile."""
EVERY: Final = 4
"""Of so many steps in which nobody can spare anything one takes a tile of prompts all the same."""
_MARGIN: Final = 1.1
_NEWEST: Final = 0.2
_DRIFT: Final = (0.25, 8.0)


class Slack:
    """One per core. Learns how far the costs that were measured at start are off."""

    def __init__(self, policy: str, target_s: float, most_tokens: int, costs: Costs) -> None:
        """`policy`: one of POLICIES but the first. `most_tokens` of a step, whoever can wait."""
        self._mean = policy == "mean"
        self._target_s = target_s
        self._most = most_tokens
        self._costs = costs
        self._dry = 0
        self.drift = 1.0
        """What steps took, over what the cost model says."""

    def tokens(self, decoding: Run[Sequence], filling: Run[Sequence], now: float) -> int:
        """For prompts, beside these running sequences (one or more). Changes what the next call
        says, so it is asked once a step."""
        if not filling:
            return 0
        spare_s = min(self._due_s(one, now) for one in decoding) - now
        cached = max(one.kv_tokens for one in filling)
        found = self._most_within(spare_s / (_MARGIN * self.drift), cached, len(decoding))
        if found:
            self._dry = 0
            return found
        self._dry = (self._dry + 1) % EVERY
        return 0 if self._dry else TILE

    def ended(self, shape: tuple[int, int, int], seconds: float) -> None:
        """A step of this (prompt tokens, cached tokens, running sequences) took so long."""
        expected_s = mixed_s(self._costs, *shape)
        if expected_s > 0.0 and seconds > 0.0 and shape[0] > 0:
            low, high = _DRIFT
            ratio = min(high, max(low, seconds / expected_s))
            self.drift += _NEWEST * (ratio - self.drift)

    def _due_s(self, sequence: Sequence, now: float) -> float:
        pace = sequence.pace
        return now + self._target_s if pace is None else pace.due_s(self._target_s, self._mean)

    def _most_within(self, spare_s: float, cached: int, decoding: int) -> int:
        """Prompt tokens, 0 where not even the first tile ends in time."""
        least, most = decoding // TILE + 1, max(self._most, TILE) // TILE
        while least <= most:
            middle = (least + most) // 2
            if mixed_s(self._costs, middle * TILE - decoding, cached, decoding) <= spare_s:
                least = middle + 1
            else:
                most = middle - 1
        return max(0, most * TILE - decoding)
