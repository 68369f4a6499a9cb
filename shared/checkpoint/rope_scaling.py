"""How rotary frequencies are stretched beyond the context a model was trained on: the numbers.

linear    Chen et al., Position Interpolation (2023)
dynamic   NTK-aware base change, at the length of the whole context: positions alone decide
yarn      Peng et al., YaRN (2023)
llama3    Llama 3.1: short waves stay, long ones stretch, a ramp in between
longrope  Ding et al., LongRoPE (2024): one factor a frequency
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from shared.errors import CheckpointError

KINDS: Final = ("linear", "dynamic", "yarn", "llama3", "longrope")
MAX_FACTOR: Final = 1e6


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """One of KINDS with its constants; those of other kinds keep their defaults."""

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8_192
    beta_fast: float = 32.0
    """yarn: turns within the original context from which a frequency stays."""
    beta_slow: float = 1.0
    """yarn: turns below which a frequency stretches fully."""
    attention_factor: float = 1.0
    """Multiplies sines and cosines (yarn, longrope)."""
    factors: tuple[float, ...] = ()
    """longrope: divides the frequencies one by one."""


def yarn_attention_factor(factor: float) -> float:
    """0.1 ln(s) + 1: the temperature that YaRN found best, on queries and keys alike."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """sqrt(1 + ln(s) / ln(L)), keeping the entropy of attention where it was."""
    if factor <= 1 or original_context <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))


def check_scaling(scaling: RopeScaling, head_dim: int, max_context: int) -> None:
    """Raise CheckpointError naming the first number that cannot be."""
    if scaling.kind not in KINDS:
        known = ", ".join(KINDS)
        raise CheckpointError(f"rope scaling {scaling.kind!r} is not supported ({known})")
    positive("rope scaling factor", scaling.factor)
    if scaling.factor > MAX_FACTOR:
        raise CheckpointError(f"model rope scaling factor is {scaling.factor!r}")
    positive("rope low frequency factor", scaling.low_frequency_factor)
    positive("rope high frequency factor", scaling.high_frequency_factor)
    positive("rope beta_fast", scaling.beta_fast)
    positive("rope beta_slow", scaling.beta_slow)
    positive("rope attention factor", scaling.attention_factor)
    if scaling.high_frequency_factor <= scaling.low_frequency_factor:
        raise CheckpointError("rope high frequency factor must exceed the low one")
    if scaling.beta_fast <= scaling.beta_slow:
        raise CheckpointError("rope beta_fast must exceed beta_slow")
    if not 1 <= scaling.original_context <= max_context:
        raise CheckpointError(f"rope original context is {scaling.original_context}")
    if scaling.kind == "longrope" and len(scaling.factors) != head_dim // 2:
        raise CheckpointError(
            f"longrope has {len(scaling.factors)} factors for {head_dim // 2} frequencies"
        )
    for factor in scaling.factors:
        positive("longrope factor", factor)


def positive(name: str, value: float) -> None:
    """Raise CheckpointError unless `value` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise CheckpointError(f"model {name} is {value!r}; expected a positive number")
