"""One run of keys against one tile of query rows: the loop that all attention kernels share.

    rows (token, query head of the group)     q      [ROWS, DIM]
    columns (position in the sequence)        k, v   [TILE, DIM]     found through the page table

Online softmax (Milakov and Gimelshein, 2018; FlashAttention-2, Dao, 2023) in base 2 and fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

DOUBLED_LOG2_E: tl.constexpr = tl.constexpr(2.8853900817779268)


@triton.jit
def capped(scores, CAP: tl.constexpr):
    """CAP * tanh(scores / CAP), odd and exact at 0. The power never exceeds 1, so both ends are
    finite whatever the scores."""
    power = tl.exp2(tl.abs(scores) * (-DOUBLED_LOG2_E / CAP))
    size = CAP * ((1.0 - power) / (1.0 + power))
    return tl.where(scores < 0, -size, size)


@triton.jit
def attend_run(
    q,
    position,
    best,
    total,
    acc,
    kv_ptr,
    table_ptr,
    page_stride,
    half_stride,
    begin,
    end,
    scale,
    window,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    CAP: tl.constexpr,
):
    """Fold positions [begin, end) into (best, total, acc), the running maximum, sum and sum of
    weighted values of each row.

    kv_ptr: keys of this kv head in page 0; table_ptr: this sequence's row of the page table.
    Without MASKED all rows must see all of [begin, end), a whole number of tiles. With it a row at
    position p sees (p - window, p]. scale and CAP, the bound of the scores where it is not 0,
    include log2(e). STAGES loads of keys are under way at a time. UPCAST does all products in
    fp32."""
    dims = tl.arange(0, DIM)
    dim_ok = dims < HEAD_DIM
    for first in tl.range(begin, end, TILE, num_stages=STAGES):
        at = first + tl.arange(0, TILE)
        if MASKED:
            live = at < end
            page = tl.load(table_ptr + at // BLOCK_TOKENS, mask=live, other=0)
            ok = live[:, None] & dim_ok[None, :]
            k_ok = live[None, :] & dim_ok[:, None]
        else:
            page = tl.load(table_ptr + at // BLOCK_TOKENS)
            ok = tl.broadcast_to(dim_ok[None, :], (TILE, DIM))
            k_ok = tl.broadcast_to(dim_ok[:, None], (DIM, TILE))
        token_at = page.to(tl.int64) * page_stride + (at % BLOCK_TOKENS) * HEAD_DIM
        k = tl.load(kv_ptr + token_at[None, :] + dims[:, None], mask=k_ok, other=0.0)
        v_at = token_at[:, None] + half_stride + dims[None, :]
        v = tl.load(kv_ptr + v_at, mask=ok, other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if CAP > 0:
            scores = capped(scores, CAP)
        if MASKED:
            back = position[:, None] - at[None, :]
            scores = tl.where((back >= 0) & (back < window) & live[None, :], scores, float("-inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen nothing yet keeps -inf, whose difference to itself is not a number.
        ground = tl.where(peak == float("-inf"), 0.0, peak)
        shrink = tl.exp2(best - ground)
        weights = tl.exp2(scores - ground[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = peak
    return best, total, acc
