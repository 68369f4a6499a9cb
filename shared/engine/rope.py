"""Rotary position embedding, rotate-halves form, with stretched frequencies.

Su et al., RoFormer (2021). Angles and products are float32 whatever the model's dtype. The
rotation of a position depends on the position alone, so cached keys never go stale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from shared.checkpoint.rope_scaling import RopeScaling
from shared.checkpoint.spec import ModelSpec
from shared.errors import CheckpointError

Turn = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Rotary:
    """What turns a head by its position."""

    frequencies: torch.Tensor
    """[head_dim / 2] float32 radians per position."""
    magnitude: float = 1.0
    """Multiplies sines and cosines."""

    def angles(self, positions: torch.Tensor) -> Turn:
        """Cosines and sines, [token, 1, head_dim / 2] float32, for all layers of a step."""
        turned = positions.to(torch.float32)[:, None, None] * self.frequencies
        return turned.cos() * self.magnitude, turned.sin() * self.magnitude

    def to(self, device: torch.device) -> Rotary:
        return Rotary(self.frequencies.to(device), self.magnitude)


def rotary(spec: ModelSpec, factors: torch.Tensor | None) -> Rotary:
    """Of the model's ordinary layers. `factors` (from GGUF) divide the frequencies one by one."""
    frequencies = _plain(spec.rope_base, spec.head_dim)
    scaling = spec.rope_scaling
    if factors is not None:
        if factors.shape != frequencies.shape:
            raise CheckpointError(f"rope factors have shape {list(factors.shape)}")
        return Rotary(frequencies / factors)
    if scaling is None:
        return Rotary(frequencies)
    match scaling.kind:
        case "linear":
            frequencies = frequencies / scaling.factor
        case "dynamic":
            frequencies = _plain(_dynamic_theta(spec, scaling), spec.head_dim)
        case "yarn":
            frequencies = _yarn(spec, frequencies, scaling)
        case "longrope":
            frequencies = frequencies / torch.tensor(scaling.factors)
        case _:
            frequencies = _llama3(frequencies, scaling)
    return Rotary(frequencies, scaling.attention_factor)


def local_rotary(spec: ModelSpec) -> Rotary | None:
    """Of the layers with a window, or None where it is the same as everywhere."""
    if not spec.local_rope_base or not spec.windows:
        return None
    return Rotary(_plain(spec.local_rope_base, spec.head_dim))


def _plain(base: float, head_dim: int) -> torch.Tensor:
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / base**steps


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Short waves stay, long waves stretch by `factor`, a ramp in between."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    ramp = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - ramp) * frequencies / scaling.factor + ramp * frequencies


def _dynamic_theta(spec: ModelSpec, scaling: RopeScaling) -> float:
    """The NTK-aware base for a sequence as long as the context; shorter ones use the same, so
    that the keys of a prefix do not depend on what follows it."""
    stretch = max(1.0, spec.context / scaling.original_context)
    ratio = scaling.factor * stretch - (scaling.factor - 1)
    return float(spec.rope_base * ratio ** (spec.head_dim / max(1, spec.head_dim - 2)))


def _yarn(spec: ModelSpec, frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """ "NTK by parts": pairs that turn often within the original context stay, those that turn
    less than `beta_slow` times stretch by `factor`, a ramp over the pairs in between."""

    def pair(turns: float) -> float:
        wave = scaling.original_context / (turns * 2 * math.pi)
        return spec.head_dim * math.log(wave) / (2 * math.log(spec.rope_base))

    low = max(0, math.floor(pair(scaling.beta_fast)))
    high = min(spec.head_dim - 1, math.ceil(pair(scaling.beta_slow)))
    pairs = torch.arange(len(frequencies), dtype=torch.float32)
    ramp = ((pairs - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return ramp * frequencies / scaling.factor + (1 - ramp) * frequencies


def rotate_(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """Rotate [token, head, head_dim] in place: pairs are (i, i + half)."""
    half = heads.shape[-1] // 2
    first, second = heads[..., :half].float(), heads[..., half:].float()
    turned = first * cosines - second * sines
    heads[..., half:] = second * cosines + first * sines
    heads[..., :half] = turned
