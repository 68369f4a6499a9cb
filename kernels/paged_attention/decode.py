"""Paged decode attention: one query token per sequence, its keys split over programs.

    grid (sequence, kv_head, split):  each program reads `SPAN` positions of one kv head for all
    query heads of its group and leaves (acc, max, sum) in fp32;  a second kernel adds the splits
    of a (sequence, head) up in index order, so the result does not depend on arrival order.

Flash-decoding (Dao et al., 2023) over PagedAttention's page tables (Kwon et al., SOSP 2023).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_split(
    q_ptr,
    kv_ptr,
    table_ptr,
    length_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    scale,
    q_row_stride,
    kv_page_stride,
    kv_half_stride,
    kv_head_stride,
    table_stride,
    splits,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Partial attention of one kv head's query group over positions [split*SPAN, +SPAN).

    ROWS >= GROUP and DIM >= HEAD_DIM are the padded tile sizes (powers of two, ROWS >= 16).
    UPCAST does all products in fp32 (for fp32 pages, and for the interpreter)."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(length_ptr + sequence)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    row_ok = rows < GROUP
    dim_ok = dims < HEAD_DIM
    head = kv_head * GROUP + rows
    q_at = sequence.to(tl.int64) * q_row_stride + head[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=row_ok[:, None] & dim_ok[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    begin = split * SPAN
    end = tl.minimum(begin + SPAN, length)
    for first in range(begin, end, TILE):
        at = first + tl.arange(0, TILE)
        live = at < end
        page = tl.load(
            table_ptr + sequence.to(tl.int64) * table_stride + at // BLOCK_TOKENS,
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
        scores = tl.where(live[None, :], scores, float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp(best - peak)
        weights = tl.exp(scores - peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = peak
    slot = (sequence.to(tl.int64) * tl.num_programs(1) * GROUP + head) * splits + split
    tl.store(max_ptr + slot, best, mask=row_ok)
    tl.store(sum_ptr + slot, total, mask=row_ok)
    acc_at = slot[:, None] * HEAD_DIM + dims[None, :]
    tl.store(acc_ptr + acc_at, acc, mask=row_ok[:, None] & dim_ok[None, :])


@triton.jit
def decode_join(
    acc_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    splits,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
):
    """Add up the splits of one (sequence, head), in index order. Splits past the end of a
    sequence left max = -inf and sum = 0, and weigh nothing."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, DIM)
    dim_ok = dims < HEAD_DIM
    best = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([DIM], tl.float32)
    for split in range(splits):
        slot = row * splits + split
        peak = tl.load(max_ptr + slot)
        if peak > float("-inf"):
            part = tl.load(acc_ptr + slot * HEAD_DIM + dims, mask=dim_ok, other=0.0)
            highest = tl.maximum(best, peak)
            old = tl.exp(best - highest)
            new = tl.exp(peak - highest)
            acc = acc * old + part * new
            total = total * old + tl.load(sum_ptr + slot) * new
            best = highest
    value = (acc / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * HEAD_DIM + dims, value, mask=dim_ok)
