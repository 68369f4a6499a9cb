"""Draws tokens from logits. A draw depends on its own row, (seed, position), and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from shared.engine.batch import Draw
from shared.engine.chance import uniform
from shared.errors import EngineError

_LIKELY_TOKENS: Final = 1_024


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token a row of [row, vocab] float32 logits. Temperature 0 takes the highest logit,
    ties the lowest id. Raises EngineError where a row is not finite."""
    if not draws:
        return []
    if not bool(torch.isfinite(logits).all()):
        raise EngineError("logits are not finite")
    tokens: list[int] = logits.argmax(-1).tolist()
    for row, draw in enumerate(draws):
        if draw.temperature > 0:
            tokens[row] = _draw(logits[row], draw)
    return tokens


def _draw(logits: torch.Tensor, draw: Draw) -> int:
    # Subtracting the peak first keeps tiny temperatures from overflowing.
    weights = ((logits - logits.max()).double() / draw.temperature).softmax(-1)
    ids = None
    if draw.top_p < 1.0:
        weights, ids = _nucleus(weights, draw.top_p)
    bounds = weights.cumsum(-1)
    aim = uniform(draw.seed, draw.position) * bounds[-1]
    place = int(torch.searchsorted(bounds, aim, right=True))
    place = min(place, len(bounds) - 1)
    return place if ids is None else int(ids[place])


def _nucleus(weights: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The fewest most likely tokens that together reach top_p, likeliest first."""
    likely = min(_LIKELY_TOKENS, len(weights))
    sizes, ids = torch.topk(weights, likely)
    if likely < len(weights) and float(sizes.sum()) < top_p:
        sizes, ids = weights.sort(descending=True, stable=True)
    before = sizes.cumsum(-1) - sizes
    kept = max(1, int((before < top_p).sum()))
    return sizes[:kept], ids[:kept]
