"""What the sampling kernel draws, in float64 with a stable sort: the judge of which tokens stay."""

from __future__ import annotations

import torch


def kept(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """Weights [vocab] float64 of the tokens that stay, zero for the others. logits [vocab].

    Order: temperature, all that are at least min_p as likely as the likeliest, of these the top_k
    likeliest (0: all), of these the fewest that reach top_p together. Equal logits: lower id
    first."""
    wide = logits.double()
    weights = ((wide - wide.max()) / temperature).exp()
    order = torch.argsort(wide, descending=True, stable=True)
    order = order[weights[order] >= min_p]
    if 0 < top_k < len(order):
        order = order[:top_k]
    if top_p < 1:
        sizes = weights[order]
        before = sizes.cumsum(0) - sizes
        stay = before < top_p * sizes.sum()
        stay[0] = True
        order = order[stay]
    out = torch.zeros_like(weights)
    out[order] = weights[order]
    return out


def draw(weights: torch.Tensor, uniform: float) -> int:
    """The first id at which the running sum in vocabulary order exceeds uniform * sum."""
    bounds = weights.cumsum(0)
    return int(torch.searchsorted(bounds, uniform * bounds[-1], right=True))
