"""Moves cached keys to other positions: turns them in their pages by an offset.

A key at position m was turned by m * theta; by delta * theta more it is the key at m + delta.
Needed where a cached passage is reused at another place than it was computed for (CacheBlend).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def shift_keys(
    page_ptr,
    id_ptr,
    count_ptr,
    cosine_ptr,
    sine_ptr,
    kv_heads,
    page_stride,
    layer_stride,
    HEAD_DIM: tl.constexpr,
    HALF_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Grid (id, layer * kv_head): the first count[id] tokens of one head's keys, in place."""
    entry = tl.program_id(0)
    layer = tl.program_id(1) // kv_heads
    kv_head = tl.program_id(1) % kv_heads
    page = tl.load(id_ptr + entry).to(tl.int64)
    count = tl.load(count_ptr + entry)
    token = tl.arange(0, TOKENS)
    half = tl.arange(0, HALF_DIM)
    half_ok = half < HEAD_DIM // 2
    turn_at = entry.to(tl.int64) * (HEAD_DIM // 2) + half
    cosine = tl.load(cosine_ptr + turn_at, mask=half_ok, other=1.0)[None, :]
    sine = tl.load(sine_ptr + turn_at, mask=half_ok, other=0.0)[None, :]
    base = page * page_stride + layer.to(tl.int64) * layer_stride
    base += kv_head.to(tl.int64) * (BLOCK_TOKENS * HEAD_DIM)
    at = page_ptr + base + token[:, None] * HEAD_DIM + half[None, :]
    ok = (token < count)[:, None] & half_ok[None, :]
    first = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(at + HEAD_DIM // 2, mask=ok, other=0.0).to(tl.float32)
    dtype = page_ptr.dtype.element_ty
    tl.store(at, (first * cosine - second * sine).to(dtype), mask=ok)
    tl.store(at + HEAD_DIM // 2, (second * cosine + first * sine).to(dtype), mask=ok)


def reposition_keys(
    pages: torch.Tensor,
    ids: torch.Tensor,
    counts: torch.Tensor,
    offsets: torch.Tensor,
    frequencies: torch.Tensor,
) -> None:
    """Turn the keys of the first counts[i] tokens of page ids[i], in all layers, by offsets[i]
    positions (negative: towards the front), in place.

    pages [page, layer, 2, kv_head, block_tokens, head_dim], contiguous pages; ids, counts [n]
    int32, ids distinct; offsets [n] integers; frequencies [head_dim / 2] radians a position, as the
    model scales them. The angles are made in float64: a long way is exact. Raises
    ValueError for tensors that do not fit."""
    layers, _, kv_heads, block_tokens, head_dim = pages.shape[1:]
    if not (ids.shape == counts.shape == offsets.shape) or ids.dim() != 1:
        raise ValueError("ids, counts and offsets differ in length")
    if frequencies.shape != (head_dim // 2,) or not pages[0].is_contiguous():
        raise ValueError(f"frequencies {list(frequencies.shape)} do not fit {list(pages.shape)}")
    if not len(ids):
        return
    angles = offsets.double()[:, None] * frequencies.double()
    shift_keys[(len(ids), layers * kv_heads)](
        pages,
        ids,
        counts,
        angles.cos().float(),
        angles.sin().float(),
        kv_heads,
        pages.stride(0),
        pages.stride(1),
        HEAD_DIM=head_dim,
        HALF_DIM=triton.next_power_of_2(head_dim // 2),
        BLOCK_TOKENS=block_tokens,
        TOKENS=triton.next_power_of_2(block_tokens),
    )
