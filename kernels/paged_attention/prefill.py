"""Paged prefill attention: tiles of query tokens against all earlier positions of a sequence.

    grid (tile, kv_head):  a tile is `ROWS // GROUP` query tokens of one sequence; its rows are
    (token, query head of the group), so keys and values are read once for the whole group.

FlashAttention-2's online softmax (Dao, 2023) over page tables; sequences of any length share a
launch through two small tables (tile -> item, tile -> first query).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prefill_tile(
    q_ptr,
    kv_ptr,
    out_ptr,
    table_ptr,
    tile_item_ptr,
    tile_first_ptr,
    item_row_ptr,
    item_start_ptr,
    item_count_ptr,
    scale,
    q_row_stride,
    kv_page_stride,
    kv_half_stride,
    kv_head_stride,
    table_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Causal attention of one tile. Item i's queries are rows item_row[i].. of q, at positions
    item_start[i]..; every padded row repeats nothing and stores nothing."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    item = tl.load(tile_item_ptr + tile)
    first_query = tl.load(tile_first_ptr + tile)
    start = tl.load(item_start_ptr + item)
    count = tl.load(item_count_ptr + item)
    row_base = tl.load(item_row_ptr + item)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    query = first_query + rows // GROUP
    row_ok = (rows < (ROWS // GROUP) * GROUP) & (query < count)
    dim_ok = dims < HEAD_DIM
    head = kv_head * GROUP + rows % GROUP
    q_row = (row_base + query).to(tl.int64) * q_row_stride
    at_q = q_row[:, None] + head[:, None] * HEAD_DIM + dims[None, :]
    q_ok = row_ok[:, None] & dim_ok[None, :]
    q = tl.load(q_ptr + at_q, mask=q_ok, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    position = start + query
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    last_query = tl.minimum(first_query + ROWS // GROUP, count)
    end = start + last_query
    for first in range(0, end, TILE):
        at = first + tl.arange(0, TILE)
        live = at < end
        page = tl.load(
            table_ptr + item.to(tl.int64) * table_stride + at // BLOCK_TOKENS,
            mask=live,
            other=0,
        ).to(tl.int64)
        base = page * kv_page_stride + kv_head.to(tl.int64) * kv_head_stride
        token_at = base + (at % BLOCK_TOKENS) * HEAD_DIM
        k_at = token_at[None, :] + dims[:, None]
        k = tl.load(kv_ptr + k_at, mask=live[None, :] & dim_ok[:, None], other=0.0)
        v_at = token_at[:, None] + kv_half_stride + dims[None, :]
        v = tl.load(kv_ptr + v_at, mask=live[:, None] & dim_ok[None, :], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        visible = (at[None, :] <= position[:, None]) & live[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp(best - peak)
        weights = tl.exp(scores - peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = peak
    value = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at_q, value, mask=q_ok)
