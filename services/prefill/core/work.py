"""How long engine work takes: the cost model applied to prompt tokens. Knows no jobs."""

from __future__ import annotations

from shared.wire.workers import CostModel


def pairs(tokens: int, before: int) -> int:
    """Attention work of `tokens` new positions after `before`: (n + p)^2 - p^2."""
    return (tokens + before) ** 2 - before**2


def prefill_seconds(cost: CostModel, tokens: int, before: int, chunk_tokens: int) -> float:
    """Engine seconds for `tokens` more prompt tokens, in chunks."""
    if tokens <= 0:
        return 0.0
    chunks = -(-tokens // chunk_tokens)
    return chunks * cost.step_s + tokens * cost.token_s + pairs(tokens, before) * cost.pair_s
