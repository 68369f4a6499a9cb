"""Chooses the kernel for each half of a step and launches it. The only door to the kernels."""

from __future__ import annotations

from typing import Final

import torch
import triton

from kernels.paged_attention.decode import decode_join, decode_split
from kernels.paged_attention.plan import (
    DECODE_SPAN_TOKENS,
    PREFILL_ROWS,
    AttentionPlan,
    DecodePlan,
    PrefillPlan,
)
from kernels.paged_attention.prefill import prefill_tile

DECODE_TILE: Final = 64
PREFILL_TILE: Final = 64
MIN_ROWS: Final = 16


def paged_attention(
    plan: AttentionPlan, q: torch.Tensor, kv: torch.Tensor, scale: float, *, upcast: bool = False
) -> torch.Tensor:
    """Attention of all items of a step over one layer's pages.

    q: [tokens, head, head_dim], contiguous; kv: [page, 2, kv_head, block_tokens, head_dim], a view
    of the page memory whose last two dimensions are contiguous; both of one dtype. Returns
    [tokens, head, head_dim] in that dtype. float32 pages are always multiplied in float32."""
    out = torch.empty_like(q)
    upcast = upcast or q.dtype == torch.float32
    if plan.prefill is not None:
        _launch_prefill(plan.prefill, q, kv, out, scale, upcast)
    if plan.decode is not None:
        out[plan.decode.rows] = _launch_decode(plan.decode, q, kv, scale, upcast)
    return out


def _launch_decode(
    plan: DecodePlan, q: torch.Tensor, kv: torch.Tensor, scale: float, upcast: bool
) -> torch.Tensor:
    queries = q[plan.rows]
    items, heads, head_dim = queries.shape
    kv_heads, block_tokens = kv.shape[2], kv.shape[3]
    group = heads // kv_heads
    parts = items * heads * plan.splits
    acc = torch.empty((parts, head_dim), dtype=torch.float32, device=q.device)
    peaks = torch.empty(parts, dtype=torch.float32, device=q.device)
    sums = torch.empty(parts, dtype=torch.float32, device=q.device)
    decode_split[(items, kv_heads, plan.splits)](
        queries,
        kv,
        plan.tables,
        plan.lengths,
        acc,
        peaks,
        sums,
        scale,
        queries.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        plan.tables.stride(0),
        plan.splits,
        GROUP=group,
        ROWS=max(MIN_ROWS, triton.next_power_of_2(group)),
        HEAD_DIM=head_dim,
        DIM=triton.next_power_of_2(head_dim),
        BLOCK_TOKENS=block_tokens,
        TILE=DECODE_TILE,
        SPAN=DECODE_SPAN_TOKENS,
        UPCAST=upcast,
    )
    out = torch.empty_like(queries)
    decode_join[(items * heads,)](
        acc,
        peaks,
        sums,
        out,
        plan.splits,
        HEAD_DIM=head_dim,
        DIM=triton.next_power_of_2(head_dim),
    )
    return out


def _launch_prefill(
    plan: PrefillPlan,
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    upcast: bool,
) -> None:
    _, heads, head_dim = q.shape
    kv_heads, block_tokens = kv.shape[2], kv.shape[3]
    group = heads // kv_heads
    prefill_tile[(plan.tile_items.numel(), kv_heads)](
        q,
        kv,
        out,
        plan.tables,
        plan.tile_items,
        plan.tile_firsts,
        plan.item_rows,
        plan.item_starts,
        plan.item_counts,
        scale,
        q.stride(0),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        plan.tables.stride(0),
        GROUP=group,
        ROWS=max(PREFILL_ROWS, triton.next_power_of_2(group)),
        HEAD_DIM=head_dim,
        DIM=triton.next_power_of_2(head_dim),
        BLOCK_TOKENS=block_tokens,
        TILE=PREFILL_TILE,
        UPCAST=upcast,
    )
