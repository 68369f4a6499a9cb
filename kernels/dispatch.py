"""The only door to the kernels: one function a job, each saying its shapes. Falls back to nothing.

    attention   paged_attention (serial or fused)         pages       gather_pages, scatter_pages
    layer       rms_norm, add_rms_norm, rope_write,       KV codec    encode_pages, decode_pages
                silu_mul                                  reuse       reposition_keys
    tokens      sample_tokens

Every function launches on the device of its tensors and returns without waiting for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kernels.activation.silu import silu_mul
from kernels.kv_codec.quantise import decode_pages, encode_pages
from kernels.kv_pages.copy import gather_pages, scatter_pages
from kernels.norm.rms import add_rms_norm, rms_norm
from kernels.paged_attention import launch
from kernels.paged_attention.fusing import AttentionCosts
from kernels.paged_attention.plan import AttentionPlan
from kernels.paged_attention.scratch import FusedScratch
from kernels.rope.shift import reposition_keys
from kernels.rope.write import rope_write
from kernels.sampling.draw import sample_tokens

__all__ = [
    "Fusing",
    "add_rms_norm",
    "decode_pages",
    "encode_pages",
    "gather_pages",
    "paged_attention",
    "reposition_keys",
    "rms_norm",
    "rope_write",
    "sample_tokens",
    "scatter_pages",
    "silu_mul",
]


@dataclass(frozen=True, slots=True)
class Fusing:
    """Permission to answer a mixed step with one launch. One per stream."""

    scratch: FusedScratch
    costs: AttentionCosts | None = None
    """Measured at start; without it `auto` never fuses."""
    choice: Literal["auto", "always", "never"] = "auto"

    def chosen(self, plan: AttentionPlan, dtype: torch.dtype) -> bool:
        """Whether this step is worth one launch. `auto` never is for float32, which has no tensor
        cores to keep busy."""
        if plan.entries is None or self.choice == "never":
            return False
        if self.choice == "always":
            return True
        return self.costs is not None and dtype != torch.float32 and self.costs.fusing_pays(plan)


def paged_attention(
    plan: AttentionPlan,
    q: torch.Tensor,
    kv: torch.Tensor,
    scale: float,
    *,
    cap: float = 0.0,
    upcast: bool = False,
    fusing: Fusing | None = None,
) -> torch.Tensor:
    """Attention of all items of a step over one layer's pages.

    q: [tokens, head, head_dim], contiguous; kv: [page, 2, kv_head, block_tokens, head_dim], a view
    of the page memory whose last two dimensions are contiguous; both of one dtype. Returns
    [tokens, head, head_dim] in that dtype. Scores are scale * q k, or cap * tanh(scale * q k / cap)
    for a cap that is not 0. float32 pages are always multiplied in float32.
    Raises ValueError for tensors that do not fit each other."""
    given = launch.shapes(plan, q, kv, scale, upcast=upcast, cap=cap)
    out = torch.empty_like(q)
    if fusing is not None and fusing.chosen(plan, q.dtype):
        launch.fused(plan, q, kv, out, given, fusing.scratch)
    else:
        launch.serial(plan, q, kv, out, given)
    return out
