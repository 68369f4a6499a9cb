"""The shape of a Llama-family model: the numbers, and which numbers we accept.

Owns validation of what a model file claims; knows no file format and no arithmetic library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shared.errors import CheckpointError

DTYPES: Final = ("float32", "bfloat16", "float16")
_LIMITS: Final = {
    "layers": 1_024,
    "hidden": 1 << 16,
    "heads": 1_024,
    "kv_heads": 1_024,
    "head_dim": 512,
    "ffn": 1 << 20,
    "vocab": 1 << 20,
    "context": 1 << 24,
}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched: 'linear', or 'llama3' with its three extras."""

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Dimensions and constants. `validated()` is the only door for numbers from a file."""

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

    @property
    def queries_per_kv_head(self) -> int:
        return self.heads // self.kv_heads

    def validated(self) -> ModelSpec:
        """Itself, or CheckpointError naming the first number that cannot be."""
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                raise CheckpointError(f"model {name} is {value!r}; expected 1..{limit}")
        for name in ("rope_base", "rms_eps"):
            _positive(name, getattr(self, name))
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"model has {self.heads} heads for {self.kv_heads} KV heads; must divide evenly"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"model head_dim is {self.head_dim}; must be even")
        if self.rope_scaling is not None:
            _check_scaling(self.rope_scaling)
        return self


def _check_scaling(scaling: RopeScaling) -> None:
    if scaling.kind not in ("linear", "llama3"):
        raise CheckpointError(f"rope scaling {scaling.kind!r} is not supported (linear, llama3)")
    _positive("rope scaling factor", scaling.factor)
    _positive("rope low frequency factor", scaling.low_frequency_factor)
    _positive("rope high frequency factor", scaling.high_frequency_factor)
    if scaling.high_frequency_factor <= scaling.low_frequency_factor:
        raise CheckpointError("rope high frequency factor must exceed the low one")
    if not 1 <= scaling.original_context <= _LIMITS["context"]:
        raise CheckpointError(f"rope original context is {scaling.original_context}")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise CheckpointError(f"model {name} is {value!r}; expected a positive number")
