"""What rotating by position means, in float64. RoFormer (Su et al., 2021), halves form."""

from __future__ import annotations

import torch


def turns(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [position, head_dim / 2] float64 of position * frequency."""
    angle = positions.double()[:, None] * frequencies.double()
    return angle.cos(), angle.sin()


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """[..., head, head_dim] by [..., head_dim / 2] turns, pairs (i, i + half), float64."""
    first, second = heads.double().chunk(2, -1)
    cos, sin = cosines.double()[..., None, :], sines.double()[..., None, :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
