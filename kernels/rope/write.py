"""Rotary positions fused with the page write: one pass over the projected queries, keys, values.

mixed [token, heads + 2 * kv_heads, head_dim]     queries turn in place,
                                                  keys turn on their way into the page,
                                                  values go there as they are
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

HEAD_TILE: Final = 8


@triton.jit
def rope_write_rows(
    mixed_ptr,
    cosine_ptr,
    sine_ptr,
    slot_ptr,
    kv_ptr,
    heads,
    kv_heads,
    mixed_row_stride,
    kv_page_stride,
    kv_half_stride,
    kv_head_stride,
    HEAD_DIM: tl.constexpr,
    HALF_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
):
    """Grid (token, tile of heads). Slot s is token s % BLOCK_TOKENS of page s // BLOCK_TOKENS; a
    negative slot turns the queries and writes nothing. HALF_DIM >= HEAD_DIM / 2, a power of two."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_TILE + tl.arange(0, HEAD_TILE)
    half = tl.arange(0, HALF_DIM)
    half_ok = half < HEAD_DIM // 2
    ok = (head < heads + 2 * kv_heads)[:, None] & half_ok[None, :]
    cosine = tl.load(cosine_ptr + token * (HEAD_DIM // 2) + half, mask=half_ok, other=1.0)
    sine = tl.load(sine_ptr + token * (HEAD_DIM // 2) + half, mask=half_ok, other=0.0)
    at = mixed_ptr + token * mixed_row_stride + head[:, None] * HEAD_DIM + half[None, :]
    first = tl.load(at, mask=ok, other=0.0)
    second = tl.load(at + HEAD_DIM // 2, mask=ok, other=0.0)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    dtype = mixed_ptr.dtype.element_ty
    turned_first = (wide_first * cosine[None, :] - wide_second * sine[None, :]).to(dtype)
    turned_second = (wide_second * cosine[None, :] + wide_first * sine[None, :]).to(dtype)
    is_query = ok & (head < heads)[:, None]
    tl.store(at, turned_first, mask=is_query)
    tl.store(at + HEAD_DIM // 2, turned_second, mask=is_query)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    stored = tl.maximum(head - heads, 0)
    is_value = stored >= kv_heads
    kv_head = tl.where(is_value, stored - kv_heads, stored).to(tl.int64)
    row = (slot // BLOCK_TOKENS) * kv_page_stride + (slot % BLOCK_TOKENS) * HEAD_DIM
    row += tl.where(is_value, 1, 0).to(tl.int64) * kv_half_stride + kv_head * kv_head_stride
    target = kv_ptr + row[:, None] + half[None, :]
    first_stored = heads + tl.where(slot < 0, 2 * kv_heads, 0)
    is_new = ok & (head >= first_stored)[:, None]
    tl.store(target, tl.where(is_value[:, None], first, turned_first), mask=is_new)
    second_out = tl.where(is_value[:, None], second, turned_second)
    tl.store(target + HEAD_DIM // 2, second_out, mask=is_new)


def rope_write(
    mixed: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
) -> torch.Tensor:
    """Rotate and store what one layer projected. Returns the queries, a view of `mixed`.

    mixed [token, heads + 2 * kv_heads, head_dim], heads contiguous, changed in place; cosines,
    sines [token, head_dim / 2] float32, contiguous; slots [token] int32, page * block_tokens +
    offset or negative, distinct; kv [page, 2, kv_head, block_tokens, head_dim] of mixed's dtype,
    one layer's view of the pages. Raises ValueError for tensors that do not fit."""
    tokens, rows, head_dim = mixed.shape
    kv_heads, block_tokens = kv.shape[2:4]
    heads = rows - 2 * kv_heads
    turns = (tokens, head_dim // 2)
    if heads < 1 or head_dim % 2 or kv.shape[4] != head_dim or kv.dtype != mixed.dtype:
        raise ValueError(f"{list(mixed.shape)} does not fit pages {list(kv.shape)}")
    if cosines.shape != turns or sines.shape != turns or slots.shape != (tokens,):
        raise ValueError(f"turns and slots do not fit {tokens} tokens of {head_dim}")
    if tokens:
        rope_write_rows[(tokens, triton.cdiv(rows, HEAD_TILE))](
            mixed,
            cosines,
            sines,
            slots,
            kv,
            heads,
            kv_heads,
            mixed.stride(0),
            kv.stride(0),
            kv.stride(1),
            kv.stride(2),
            HEAD_DIM=head_dim,
            HALF_DIM=triton.next_power_of_2(head_dim // 2),
            BLOCK_TOKENS=block_tokens,
            HEAD_TILE=HEAD_TILE,
        )
    return mixed[:, :heads]
