"""Weights on a device: read tensor by tensor from a checkpoint, fused for fewer, larger products.

qkv     = [q; k; v]        rows of all query heads, then key heads, then value heads
gate_up = [gate; up]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shared.checkpoint.checkpoint import Checkpoint
from shared.checkpoint.spec import ModelSpec
from shared.engine.operations import Matrix
from shared.engine.rope import Rotary, local_rotary, rotary
from shared.engine.team import Team
from shared.engine.tensor_reader import TensorReader


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Matrices are [out, in]; norms and biases are vectors. None: the architecture has none."""

    attn_norm: torch.Tensor
    qkv: Matrix
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Matrix
    attn_post_norm: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix
    ffn_post_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """Everything but the KV pages. `head` is `embed`, or this rank's rows of it, where the model
    ties them."""

    embed: Matrix
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Matrix
    rotary: Rotary
    local_rotary: Rotary | None
    """Of the layers with a window, where it is their own."""

    @property
    def matrix_bytes(self) -> int:
        """What a step reads of the weights, norms left out."""
        layers = [
            one
            for layer in self.layers
            for one in (layer.qkv, layer.out, layer.gate_up, layer.down)
        ]
        return sum(one.nbytes for one in (self.head, *layers))


def load_weights(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    team: Team,
    kept: str | None = None,
    rounded: bool = False,
) -> ModelWeights:
    """Read, convert and place this rank's share of all tensors; `kept` packs the matrices for
    the compiled library, whose products round where `rounded` (see TensorReader). Raises
    CheckpointError."""
    spec = checkpoint.spec
    reader = TensorReader(checkpoint.tensors, device, dtype, team, kept, rounded)
    embed = reader.table("embed")
    factors = None
    if checkpoint.tensors.has("rope_factors"):
        factors = torch.from_numpy(checkpoint.tensors.read("rope_factors"))
    local = local_rotary(spec)
    return ModelWeights(
        embed=embed,
        layers=tuple(_layer(reader, spec, f"layers.{index}.") for index in range(spec.layers)),
        norm=reader.vector("norm"),
        head=_head(reader, spec, embed),
        rotary=rotary(spec, factors).to(device),
        local_rotary=None if local is None else local.to(device),
    )


def _head(reader: TensorReader, spec: ModelSpec, embed: Matrix) -> Matrix:
    if not spec.tied:
        return reader.rows("head")
    return embed if reader.team.size == 1 else reader.rows("embed")


def _layer(reader: TensorReader, spec: ModelSpec, prefix: str) -> LayerWeights:
    def vector(part: str, there: bool) -> torch.Tensor | None:
        return reader.vector(prefix + part) if there else None

    bias = [prefix + part for part in ("q_bias", "k_bias", "v_bias")]
    return LayerWeights(
        attn_norm=reader.vector(prefix + "attn_norm"),
        qkv=reader.rows(prefix + "q", prefix + "k", prefix + "v"),
        qkv_bias=reader.vectors(*bias) if spec.qkv_bias else None,
        q_norm=vector("q_norm", spec.qk_norm),
        k_norm=vector("k_norm", spec.qk_norm),
        out=reader.columns(prefix + "o"),
        attn_post_norm=vector("attn_post_norm", spec.post_norms),
        ffn_norm=reader.vector(prefix + "ffn_norm"),
        gate_up=reader.rows(prefix + "gate", prefix + "up"),
        down=reader.columns(prefix + "down"),
        ffn_post_norm=vector("ffn_post_norm", spec.post_norms),
    )
