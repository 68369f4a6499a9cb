"""Paged decode attention: one query token per sequence, its keys split over programs.

    grid (sequence, kv_head, split):  each program reads `SPAN` positions of one kv head for all
    query heads of its group and leaves (acc, max, sum) in fp32;  a second kernel adds the splits
    of a (sequence, kv head) up in index order, so the result does not depend on arrival order.

Flash-decoding (Dao et al., 2023) over PagedAttention's page tables (Kwon et al., SOSP 2023).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.paged_attention.tile import attend_run


@triton.jit
def decode_part(
    q_ptr,
    kv_ptr,
    row_ptr,
    length_ptr,
    table_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    item,
    kv_head,
    split,
    splits,
    first_slot,
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
    SPAN: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    CAP: tl.constexpr,
):
    """Partial attention of one kv head's query group over the split-th SPAN of what it sees.

    Leaves (acc, max, sum) of query head h at slot first_slot + h * splits + split. ROWS >= GROUP
    and DIM >= HEAD_DIM are the padded tile sizes (powers of two, ROWS >= 16)."""
    length = tl.load(length_ptr + item)
    row = tl.load(row_ptr + item)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    row_ok = rows < GROUP
    ok = row_ok[:, None] & (dims < HEAD_DIM)[None, :]
    head = kv_head * GROUP + rows
    q_at = row.to(tl.int64) * q_row_stride + head[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=ok, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    position = tl.zeros([ROWS], tl.int32) + (length - 1)
    keys = kv_ptr + kv_head.to(tl.int64) * kv_head_stride
    table = table_ptr + item.to(tl.int64) * table_stride
    begin = tl.maximum(length - window, 0) + split * SPAN
    end = tl.minimum(begin + SPAN, length)
    whole = begin + (tl.maximum(end - begin, 0) // TILE) * TILE
    # fmt: off
    best, total, acc = attend_run(
        q, position, best, total, acc, keys, table, kv_page_stride, kv_half_stride,
        begin, whole, scale, window, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, False, STAGES, UPCAST, CAP)
    best, total, acc = attend_run(
        q, position, best, total, acc, keys, table, kv_page_stride, kv_half_stride,
        whole, end, scale, window, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, True, 1, UPCAST, CAP)
    # fmt: on
    slot = first_slot + head * splits + split
    tl.store(max_ptr + slot, best, mask=row_ok)
    tl.store(sum_ptr + slot, total, mask=row_ok)
    tl.store(acc_ptr + slot[:, None] * HEAD_DIM + dims[None, :], acc, mask=ok)


@triton.jit
def join_parts(
    acc_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    row,
    kv_head,
    splits,
    first_slot,
    out_row_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
):
    """Add up the splits of one (sequence, kv head), in index order. The first split is never empty;
    an empty later one left max = -inf and zeros, and weighs nothing."""
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    row_ok = rows < GROUP
    ok = row_ok[:, None] & (dims < HEAD_DIM)[None, :]
    head = kv_head * GROUP + rows
    slot = first_slot + head * splits
    best = tl.load(max_ptr + slot, mask=row_ok, other=0.0)
    total = tl.load(sum_ptr + slot, mask=row_ok, other=1.0)
    acc = tl.load(acc_ptr + slot[:, None] * HEAD_DIM + dims[None, :], mask=ok, other=0.0)
    for split in range(1, splits):
        at = slot + split
        peak = tl.load(max_ptr + at, mask=row_ok, other=0.0)
        highest = tl.maximum(best, peak)
        old = tl.exp2(best - highest)
        new = tl.exp2(peak - highest)
        part = tl.load(acc_ptr + at[:, None] * HEAD_DIM + dims[None, :], mask=ok, other=0.0)
        acc = acc * old[:, None] + part * new[:, None]
        total = total * old + tl.load(sum_ptr + at, mask=row_ok, other=0.0) * new
        best = highest
    value = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    out_at = row.to(tl.int64) * out_row_stride + head[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + out_at, value, mask=ok)


@triton.jit(do_not_specialize=["table_stride"])
def decode_split(
    q_ptr,
    kv_ptr,
    row_ptr,
    length_ptr,
    table_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
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
    SPAN: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    CAP: tl.constexpr,
):
    """Grid (item, kv_head, split), every item with as many splits as the longest needs, so that a
    captured launch serves any lengths up to that."""
    item = tl.program_id(0)
    kv_head = tl.program_id(1)
    splits = tl.num_programs(2)
    first_slot = item.to(tl.int64) * (tl.num_programs(1) * GROUP * splits)
    # fmt: off
    decode_part(
        q_ptr, kv_ptr, row_ptr, length_ptr, table_ptr, acc_ptr, max_ptr, sum_ptr,
        item, kv_head, tl.program_id(2), splits, first_slot, scale, window,
        q_row_stride, kv_page_stride, kv_half_stride, kv_head_stride, table_stride,
        GROUP, ROWS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, SPAN, STAGES, UPCAST, CAP)
    # fmt: on


@triton.jit(do_not_specialize=["splits"])
def decode_join(
    acc_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    row_ptr,
    splits,
    out_row_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
):
    """Grid (item, kv_head): what decode_split left becomes rows of the output."""
    item = tl.program_id(0)
    first_slot = item.to(tl.int64) * (tl.num_programs(1) * GROUP * splits)
    # fmt: off
    join_parts(
        acc_ptr, max_ptr, sum_ptr, out_ptr, tl.load(row_ptr + item), tl.program_id(1),
        splits, first_slot, out_row_stride, GROUP, ROWS, HEAD_DIM, DIM)
    # fmt: on
