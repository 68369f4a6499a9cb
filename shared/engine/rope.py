"""Rotary position embedding, rotate-halves form, with linear and llama3 frequency scaling.

Su et al., RoFormer (2021). Angles and products are float32 whatever the model's dtype.
"""

from __future__ import annotations

import math

import torch

from shared.checkpoint.spec import ModelSpec, RopeScaling
from shared.errors import CheckpointError


def inverse_frequencies(spec: ModelSpec, factors: torch.Tensor | None) -> torch.Tensor:
    """[head_dim / 2] radians per position. `factors` (from GGUF) divide them one by one."""
    steps = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    frequencies = 1.0 / spec.rope_base**steps
    if factors is not None:
        if factors.shape != frequencies.shape:
            raise CheckpointError(f"rope factors have shape {list(factors.shape)}")
        return frequencies / factors
    if spec.rope_scaling is None:
        return frequencies
    if spec.rope_scaling.kind == "linear":
        return frequencies / spec.rope_scaling.factor
    return _llama3(frequencies, spec.rope_scaling)


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Short waves stay, long waves stretch by `factor`, a ramp in between."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    ramp = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - ramp) * frequencies / scaling.factor + ramp * frequencies


def angles(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [token, 1, head_dim / 2] float32, for all layers of a step."""
    turned = positions.to(torch.float32)[:, None, None] * frequencies
    return turned.cos(), turned.sin()


def rotate_(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """Rotate [token, head, head_dim] in place: pairs are (i, i + half)."""
    half = heads.shape[-1] // 2
    first, second = heads[..., :half].float(), heads[..., half:].float()
    turned = first * cosines - second * sines
    heads[..., half:] = second * cosines + first * sines
    heads[..., :half] = turned
