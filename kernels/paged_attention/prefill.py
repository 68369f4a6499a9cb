"""Paged prefill attention: tiles of query tokens against all earlier positions of a sequence.

    grid (tile, kv_head):  a tile is `ROWS // GROUP` query tokens of one sequence; its rows are
    (token, query head of the group), so keys and values are read once for the whole group.

    positions    0 ........ whole ..... end        whole: every row of the tile sees all before it,
                 |  no mask  | diagonal |          so only the tiles on the diagonal pay for a mask;
                                                   MASK_ALL: one loop, from what the window shows

FlashAttention-2's loop (Dao, 2023) over page tables; sequences of any length, with or without a
cached prefix, share a launch through two small tables (tile -> item, tile -> first query).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.paged_attention.tile import attend_run


@triton.jit
def prefill_part(
    q_ptr,
    kv_ptr,
    out_ptr,
    table_ptr,
    tile_item_ptr,
    tile_first_ptr,
    item_row_ptr,
    item_start_ptr,
    item_count_ptr,
    tile,
    kv_head,
    scale,
    window,
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
    MASK_ALL: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    CAP: tl.constexpr,
):
    """Causal attention of one tile. Item i's queries are rows item_row[i].. of q, at positions
    item_start[i]..; padded rows repeat a neighbour's work and store nothing."""
    item = tl.load(tile_item_ptr + tile)
    first_query = tl.load(tile_first_ptr + tile)
    start = tl.load(item_start_ptr + item)
    count = tl.load(item_count_ptr + item)
    row_base = tl.load(item_row_ptr + item)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    query = first_query + rows // GROUP
    row_ok = (rows < (ROWS // GROUP) * GROUP) & (query < count)
    head = kv_head * GROUP + rows % GROUP
    q_row = (row_base + query).to(tl.int64) * q_row_stride
    at_q = q_row[:, None] + head[:, None] * HEAD_DIM + dims[None, :]
    q_ok = row_ok[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + at_q, mask=q_ok, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    end = start + tl.minimum(first_query + ROWS // GROUP, count)
    position = tl.minimum(start + query, end - 1)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    keys = kv_ptr + kv_head.to(tl.int64) * kv_head_stride
    table = table_ptr + item.to(tl.int64) * table_stride
    lowest = start + first_query
    # fmt: off
    if MASK_ALL:
        whole = tl.maximum(lowest - window + 1, 0) // TILE * TILE
    else:
        whole = (lowest + 1) // TILE * TILE
        best, total, acc = attend_run(
            q, position, best, total, acc, keys, table, kv_page_stride, kv_half_stride,
            0, whole, scale, window, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, False, STAGES, UPCAST, CAP)
    best, total, acc = attend_run(
        q, position, best, total, acc, keys, table, kv_page_stride, kv_half_stride,
        whole, end, scale, window, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, True,
        STAGES if MASK_ALL else 1, UPCAST, CAP)
    # fmt: on
    value = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at_q, value, mask=q_ok)


@triton.jit(do_not_specialize=["table_stride"])
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
    window,
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
    MASK_ALL: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    CAP: tl.constexpr,
):
    """Grid (tile, kv_head); tiles stand longest first, so that the last to start are short."""
    # fmt: off
    prefill_part(
        q_ptr, kv_ptr, out_ptr, table_ptr, tile_item_ptr, tile_first_ptr,
        item_row_ptr, item_start_ptr, item_count_ptr, tl.program_id(0), tl.program_id(1),
        scale, window, q_row_stride, kv_page_stride, kv_half_stride, kv_head_stride, table_stride,
        GROUP, ROWS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, MASK_ALL, STAGES, UPCAST, CAP)
    # fmt: on
