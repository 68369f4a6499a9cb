"""How long engine work takes: the cost model applied to prompt tokens. Knows no jobs."""

from __future__ import annotations

from collections.abc import Iterable

from shared.wire.workers import CostModel


def pairs(tokens: int, before: int) -> int:
    """Attention work of `tokens` new positions after `before`: (n + p)^2 - p^2."""
    return (tokens + before) ** 2 - before**2


def prefill_seconds(cost: CostModel, parts: Iterable[tuple[int, int]], chunk_tokens: int) -> float:
    """Engine seconds for prompts of which each has so many tokens left after so many: several
    share a step while it has room, and so its fixed part."""
    seconds, total = 0.0, 0
    for tokens, before in parts:
        seconds += tokens * cost.token_s + pairs(tokens, before) * cost.pair_s
        total += tokens
    return seconds + -(-total // chunk_tokens) * cost.step_s
