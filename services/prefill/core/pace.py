"""How long engine work takes on this worker: a cost model learned from the steps that ran.

Least squares with forgetting over (1, tokens, token pairs), pulled towards a prior, never
negative. Knows no jobs.
"""

from __future__ import annotations

from typing import Final

from shared.wire.workers import CostModel

PRIOR: Final = CostModel(
    step_s=0.005, token_s=0.0005, pair_s=0.0, decode_step_s=0.0, decode_sequence_s=0.0
)
_FORGET: Final = 0.995
_PRIOR_WEIGHT: Final = 0.01
_SCALE: Final = (1.0, 1e-3, 1e-6)
"""Brings tokens and pairs near one, so that the equations stay well conditioned."""


def pairs(tokens: int, before: int) -> int:
    """Attention work of `tokens` new positions after `before`: the c-term of the cost model."""
    return (tokens + before) ** 2 - before**2


def prefill_seconds(cost: CostModel, tokens: int, before: int, chunk_tokens: int) -> float:
    """Engine seconds for `tokens` more prompt tokens, in chunks."""
    if tokens <= 0:
        return 0.0
    chunks = -(-tokens // chunk_tokens)
    return chunks * cost.step_s + tokens * cost.token_s + pairs(tokens, before) * cost.pair_s


class Pace:
    """Learns `CostModel` from (tokens, pairs, seconds) of steps."""

    def __init__(self, prior: CostModel = PRIOR) -> None:
        self.cost = prior
        start = (prior.step_s, prior.token_s, prior.pair_s)
        self._prior = [value / scale for value, scale in zip(start, _SCALE, strict=True)]
        self._normal = [[0.0] * 3 for _ in range(3)]
        self._right = [0.0] * 3

    def learn(self, tokens: int, token_pairs: int, seconds: float) -> None:
        """Take in one step that ran."""
        row = [x * scale for x, scale in zip((1.0, tokens, token_pairs), _SCALE, strict=True)]
        for i in range(3):
            self._right[i] = _FORGET * self._right[i] + row[i] * seconds
            for j in range(3):
                self._normal[i][j] = _FORGET * self._normal[i][j] + row[i] * row[j]
        step_s, token_s, pair_s = (
            value * scale for value, scale in zip(self._fit(), _SCALE, strict=True)
        )
        self.cost = CostModel(step_s, token_s, pair_s, 0.0, 0.0)

    def _fit(self) -> list[float]:
        """Solve for all three; while one is negative, again without it. The prior never fades,
        so steps that are all alike still give one stable answer."""
        values = [0.0] * 3
        kept = [0, 1, 2]
        while kept:
            matrix = [
                [self._normal[i][j] + (_PRIOR_WEIGHT if i == j else 0.0) for j in kept]
                for i in kept
            ]
            solved = _solve(matrix, [self._right[i] + _PRIOR_WEIGHT * self._prior[i] for i in kept])
            if min(solved) >= 0.0:
                for at, i in enumerate(kept):
                    values[i] = solved[at]
                break
            kept.pop(solved.index(min(solved)))
        return values


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination of a small positive definite system."""
    size = len(right)
    rows = [[*matrix[i], right[i]] for i in range(size)]
    for i in range(size):
        pivot = rows[i][i]
        for k in range(i + 1, size):
            factor = rows[k][i] / pivot
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    solved = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][k] * solved[k] for k in range(i + 1, size))
        solved[i] = (rows[i][size] - rest) / rows[i][i]
    return solved
