"""The token budget of a decode step as a live worker chooses it at its start: the largest whose
step, beside a few sequences, stays within the time per token. Here it is priced instead of timed.
"""

from __future__ import annotations

from typing import Final

from loadgen.sim.fleet.prices import Price
from shared.engine.profile import budget_rungs, choose_budget

_MOST_TOKENS: Final = 2_048
_SEQUENCES: Final = 8
_EARLIER: Final = 512
"""Tokens before those of the prompt, and of each sequence."""


def budget(price: Price, block_tokens: int, tpot_s: float) -> int:
    """Tokens. The smallest there is where even that takes longer."""

    def seconds(tokens: int) -> float:
        new = tokens - _SEQUENCES
        pairs = (new + _EARLIER) ** 2 - _EARLIER**2
        return price.mixed_s(new, pairs, _SEQUENCES, _SEQUENCES * _EARLIER)

    return choose_budget(
        seconds, budget_rungs(_MOST_TOKENS, _SEQUENCES + block_tokens), tpot_s
    ).tokens
