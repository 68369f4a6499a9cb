"""The shape of a decoder-only model: the numbers, and which numbers we accept.

Owns validation of what a model file claims; knows no file format and no arithmetic library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from shared.checkpoint.rope_scaling import RopeScaling, check_scaling, positive
from shared.errors import CheckpointError

DTYPES: Final = ("float32", "bfloat16", "float16")
ACTIVATIONS: Final = ("silu", "gelu_tanh")
LIMITS: Final = {
    "layers": 1_024,
    "hidden": 1 << 16,
    "heads": 1_024,
    "kv_heads": 1_024,
    "head_dim": 512,
    "ffn": 1 << 20,
    "vocab": 1 << 20,
    "context": 1 << 24,
}
MAX_ROPE_BASE: Final = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Dimensions and constants. `validated()` is the only door for numbers from a file.

    The defaults describe Llama; what other architectures add stands below `rope_scaling`."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rope_base: float
    rms_eps: float
    tied: bool
    """The output projection is the embedding table."""
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    """Queries, keys and values have an additive bias (Qwen2)."""
    qk_norm: bool = False
    """RMSNorm over each query and key head before the rotation (Qwen3, Gemma 3)."""
    post_norms: bool = False
    """RMSNorm after each half, before its residual sum (Gemma 2 and 3)."""
    activation: str = "silu"
    """Of the gate: one of ACTIVATIONS."""
    embed_scale: float = 1.0
    """Multiplies embeddings as they enter the first layer."""
    attention_scale: float | None = None
    """Multiplies query-key products; None means head_dim ** -0.5."""
    attention_cap: float = 0.0
    """Attention scores s become cap * tanh(s / cap); 0: they stay."""
    logit_cap: float = 0.0
    """The same for the final logits."""
    windows: tuple[int, ...] = ()
    """Per layer how many positions a query sees, its own included; 0: all. Empty: all, in every
    layer."""
    local_rope_base: float = 0.0
    """Rotary base, unscaled, of the layers that have a window; 0: as the other layers."""

    @property
    def queries_per_kv_head(self) -> int:
        return self.heads // self.kv_heads

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def window(self, layer: int) -> int:
        """Positions that a query of this layer sees; 0: all."""
        return self.windows[layer] if self.windows else 0

    def shard(self, parts: int) -> ModelSpec:
        """What one of `parts` equal ranks computes: its heads and its share of the MLP. The
        vocabulary stays whole. Raises CheckpointError when something does not divide."""
        for name in ("kv_heads", "heads", "ffn"):
            count = getattr(self, name)
            if count % parts:
                raise CheckpointError(
                    f"{name} {count} cannot be split over {parts} tensor parallel ranks"
                )
        return replace(
            self,
            heads=self.heads // parts,
            kv_heads=self.kv_heads // parts,
            ffn=self.ffn // parts,
        )

    def validated(self) -> ModelSpec:
        """Itself, or CheckpointError naming the first number that cannot be."""
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                raise CheckpointError(f"model {name} is {value!r}; expected 1..{limit}")
        for name in ("rms_eps", "embed_scale", "score_scale"):
            positive(name, getattr(self, name))
        for name in ("rope_base", "local_rope_base"):
            base = getattr(self, name)
            if not (1 < base <= MAX_ROPE_BASE or (base == 0 and name != "rope_base")):
                raise CheckpointError(f"model {name} is {base!r}; expected 1..{MAX_ROPE_BASE:g}")
        for name in ("attention_cap", "logit_cap"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise CheckpointError(f"model {name} is {value!r}; expected a number from 0")
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"model has {self.heads} heads for {self.kv_heads} KV heads; must divide evenly"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"model head_dim is {self.head_dim}; must be even")
        if self.activation not in ACTIVATIONS:
            raise CheckpointError(
                f"activation {self.activation!r} is not supported ({', '.join(ACTIVATIONS)})"
            )
        if self.windows and (len(self.windows) != self.layers or min(self.windows) < 0):
            raise CheckpointError("sliding windows do not fit the layers")
        if self.rope_scaling is not None:
            check_scaling(self.rope_scaling, self.head_dim, LIMITS["context"])
        return self
