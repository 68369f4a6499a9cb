"""What RMSNorm means, in float64. Zhang and Sennrich (2019)."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, float64."""
    wide = x.double()
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return wide * scale * weight.double()


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of the sum, the sum as it is stored): the sum is rounded to x's dtype first."""
    added = (x.double() + residual.double()).to(x.dtype)
    return rms_norm(added, weight, eps), added
