"""What a model asks of attention beyond the queries: values only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shared.checkpoint.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class AttentionRules:
    """`heads` query heads on this rank; scores are scale * q k, capped where `cap` is not 0."""

    heads: int
    scale: float
    cap: float = 0.0
    windows: tuple[int, ...] = ()
    """Per layer, positions that a query sees, its own included; 0: all. Empty: all everywhere."""

    @classmethod
    def of(cls, spec: ModelSpec) -> AttentionRules:
        return cls(spec.heads, spec.score_scale, spec.attention_cap, spec.windows)

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0


def capped(scores: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(scores / cap), or the scores themselves for 0 (Gemma Team, 2024)."""
    return scores if cap == 0 else cap * torch.tanh(scores / cap)
