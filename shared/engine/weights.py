"""Weights on a device: read tensor by tensor from a checkpoint, fused for fewer, larger products.

qkv     = [q; k; v]        rows of all query heads, then key heads, then value heads
gate_up = [gate; up]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.tensors import TensorSource
from shared.engine.rope import inverse_frequencies


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices are [out, in]; norms are vectors."""

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Everything but the KV pages. `head` is `embed` where the model ties them."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor
    frequencies: torch.Tensor
    """[head_dim / 2] float32 radians per position."""


def load_weights(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Read, convert and place all tensors. Raises CheckpointError."""
    spec = checkpoint.spec
    reader = _Reader(checkpoint.tensors, device, dtype)
    embed = reader.fused("embed")
    factors = None
    if checkpoint.tensors.has("rope_factors"):
        factors = torch.from_numpy(checkpoint.tensors.read("rope_factors"))
    return ModelWeights(
        embed=embed,
        layers=tuple(_layer(reader, f"layers.{index}.") for index in range(spec.layers)),
        norm=reader.fused("norm"),
        head=embed if spec.tied else reader.fused("head"),
        frequencies=inverse_frequencies(spec, factors).to(device),
    )


def _layer(reader: _Reader, prefix: str) -> LayerWeights:
    return LayerWeights(
        attn_norm=reader.fused(prefix + "attn_norm"),
        qkv=reader.fused(prefix + "q", prefix + "k", prefix + "v"),
        out=reader.fused(prefix + "o"),
        ffn_norm=reader.fused(prefix + "ffn_norm"),
        gate_up=reader.fused(prefix + "gate", prefix + "up"),
        down=reader.fused(prefix + "down"),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    source: TensorSource
    device: torch.device
    dtype: torch.dtype

    def fused(self, *names: str) -> torch.Tensor:
        """The named tensors one below the other."""
        parts = [torch.from_numpy(self.source.read(name)).to(self.dtype) for name in names]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.to(self.device)
