"""Draws tokens from logits. A draw depends on its own row, (seed, position), and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from shared.engine.batch import Draw
from shared.engine.chance import uniform
from shared.engine.likeliest import likeliest
from shared.engine.row_groups import in_groups
from shared.engine.shaping import shape
from shared.errors import EngineError

GREEDY_BELOW: Final = 1e-5
"""Temperatures below leave nothing to chance, and float32 could not divide by them."""


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token a row of [row, vocab] float32 logits. Temperature 0 takes the highest logit,
    ties the lowest id. Raises EngineError where a row's highest logit is not finite."""
    if not draws:
        return []
    logits = shape(logits, draws)
    best = logits.argmax(-1)
    if not bool(logits.gather(1, best[:, None]).isfinite().all()):
        raise EngineError("logits are not finite")
    tokens: list[int] = best.tolist()
    chancy = [row for row, draw in enumerate(draws) if draw.temperature >= GREEDY_BELOW]
    for rows, draw in (
        ([row for row in chancy if not _narrow(draws[row])], _draw_among_all),
        ([row for row in chancy if _narrow(draws[row])], _draw_among_likeliest),
    ):
        for part, some in in_groups(rows, logits):
            chosen = [draws[row] for row in part]
            for row, token in zip(part, draw(_weights(some, chosen), chosen), strict=True):
                tokens[row] = token
    return tokens


def _narrow(draw: Draw) -> bool:
    return draw.top_p < 1.0 or draw.top_k > 0 or draw.min_p > 0.0


def _weights(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Probabilities at each row's temperature, float32."""
    heat = torch.tensor([[draw.temperature] for draw in draws], device=logits.device)
    # Subtracting the peak first keeps small temperatures from overflowing.
    return (logits - logits.amax(-1, keepdim=True)).div_(heat).softmax(-1)


def _draw_among_all(weights: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """By each row's own cumulated weights, in order of the vocabulary."""
    return _place(weights.cumsum(-1, dtype=torch.float64), draws)[:, 0].tolist()


def _draw_among_likeliest(weights: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """By the cumulated weights of the tokens that top_k, top_p and min_p leave, likeliest first."""
    tokens = [0] * len(draws)
    for part in likeliest(weights, draws):
        chosen = [draws[row] for row in part.rows]
        places = _place(part.bounds, chosen)
        for row, token in zip(part.rows, part.ids.gather(1, places)[:, 0].tolist(), strict=True):
            tokens[row] = token
    return tokens


def _place(bounds: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """[row, 1]: the first place whose bound is above the row's chance. `bounds` rises along a row
    to its total; places of weight 0 are never chosen."""
    chances = [[uniform(draw.seed, draw.position)] for draw in draws]
    total = bounds[:, -1:]
    aims = torch.tensor(chances, dtype=torch.float64, device=bounds.device) * total
    # The least place that reaches the total, for a chance that was rounded up to it.
    last = torch.searchsorted(bounds, total.contiguous())
    return torch.minimum(torch.searchsorted(bounds, aims, right=True), last)
