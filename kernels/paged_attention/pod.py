"""Prefill and decode attention of a mixed step in one persistent launch.

Prefill attention keeps the tensor cores busy and the memory idle, decode attention the other way
round. Every SM runs several programs; whichever program asks next on an SM gets the kind of work
that keeps both kinds there in proportion, whatever order the hardware starts programs in.

    tickets  [next_prefill | next_decode | left | one counter per SM]   int32, zero between launches
    arrivals [decode item, kv_head]                                     int32, zero between launches

POD-Attention (Kamath et al., ASPLOS 2025); the reduction of split keys is flash-decoding's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.paged_attention.decode import decode_part, join_parts
from kernels.paged_attention.prefill import prefill_part

SM_COUNTERS: tl.constexpr = tl.constexpr(3)


@triton.jit
def wants_prefill(ticket, prefill_items, decode_items):
    """Whether an SM's ticket-th item should be prefill: the scarcer kind comes once in a round of
    as many items as it is scarcer, prefill first in its round, decode last."""
    if prefill_items <= decode_items:
        round_items = decode_items // tl.maximum(prefill_items, 1) + 1
        prefill = (ticket % round_items) == 0
    else:
        round_items = prefill_items // tl.maximum(decode_items, 1) + 1
        prefill = (ticket % round_items) != (round_items - 1)
    return prefill


# Whatever changes from step to step must not make a variant of its own, which compiles for seconds.
@triton.jit(
    do_not_specialize=[
        "prefill_items",
        "decode_items",
        "prefill_table_stride",
        "decode_table_stride",
        "quota",
    ]
)
def pod_step(
    q_ptr,
    kv_ptr,
    out_ptr,
    prefill_table_ptr,
    tile_item_ptr,
    tile_first_ptr,
    item_row_ptr,
    item_start_ptr,
    item_count_ptr,
    decode_table_ptr,
    row_ptr,
    length_ptr,
    entry_item_ptr,
    entry_split_ptr,
    entry_splits_ptr,
    entry_first_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    ticket_ptr,
    arrival_ptr,
    sm_ptr,
    sms,
    prefill_items,
    decode_items,
    kv_heads,
    quota,
    scale,
    window,
    q_row_stride,
    kv_page_stride,
    kv_half_stride,
    kv_head_stride,
    prefill_table_stride,
    decode_table_stride,
    GROUP: tl.constexpr,
    PREFILL_ROWS: tl.constexpr,
    DECODE_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    PREFILL_TILE: tl.constexpr,
    DECODE_TILE: tl.constexpr,
    SPAN: tl.constexpr,
    MASK_ALL: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    CAP: tl.constexpr,
    HARDWARE_SM: tl.constexpr,
):
    """Take items until both lists are empty, or `quota` of them (unbounded on a GPU). A prefill
    item is (tile, kv head), a decode item (entry, kv head), an entry one split of one sequence.
    sm_ptr [program] names a program's SM where the hardware cannot (interpreter)."""
    sm = tl.load(sm_ptr + tl.program_id(0))
    if HARDWARE_SM:
        real = tl.extra.cuda.smid()
        sm = tl.where(real < sms, real, sm)
    taken = 0
    while taken < quota:
        ticket = tl.atomic_add(ticket_ptr + (sm + SM_COUNTERS), 1)
        prefill = wants_prefill(ticket, prefill_items, decode_items)
        kind = tl.where(prefill, 0, 1)
        number = tl.atomic_add(ticket_ptr + kind, 1)
        if number >= tl.where(kind == 0, prefill_items, decode_items):
            kind = 1 - kind
            number = tl.atomic_add(ticket_ptr + kind, 1)
        # fmt: off
        if number >= tl.where(kind == 0, prefill_items, decode_items):
            taken = quota
        elif kind == 0:
            prefill_part(
                q_ptr, kv_ptr, out_ptr, prefill_table_ptr, tile_item_ptr, tile_first_ptr,
                item_row_ptr, item_start_ptr, item_count_ptr, number // kv_heads, number % kv_heads,
                scale, window, q_row_stride, kv_page_stride, kv_half_stride, kv_head_stride,
                prefill_table_stride, GROUP, PREFILL_ROWS, HEAD_DIM, DIM, BLOCK_TOKENS,
                PREFILL_TILE, MASK_ALL, STAGES, UPCAST, CAP)
            taken += 1
        else:
            entry = number // kv_heads
            kv_head = number % kv_heads
            item = tl.load(entry_item_ptr + entry)
            splits = tl.load(entry_splits_ptr + entry)
            first_slot = tl.load(entry_first_ptr + entry).to(tl.int64) * (kv_heads * GROUP)
            decode_part(
                q_ptr, kv_ptr, row_ptr, length_ptr, decode_table_ptr, acc_ptr, max_ptr, sum_ptr,
                item, kv_head, tl.load(entry_split_ptr + entry), splits, first_slot, scale, window,
                q_row_stride, kv_page_stride, kv_half_stride, kv_head_stride, decode_table_stride,
                GROUP, DECODE_ROWS, HEAD_DIM, DIM, BLOCK_TOKENS, DECODE_TILE, SPAN,
                STAGES, UPCAST, CAP)
            # All threads' partials are out before one thread says so.
            tl.debug_barrier()
            arrival = arrival_ptr + item * kv_heads + kv_head
            if tl.atomic_add(arrival, 1, sem="acq_rel") == splits - 1:
                tl.store(arrival, 0)
                join_parts(
                    acc_ptr, max_ptr, sum_ptr, out_ptr, tl.load(row_ptr + item), kv_head,
                    splits, first_slot, q_row_stride, GROUP, DECODE_ROWS, HEAD_DIM, DIM)
            taken += 1
        # fmt: on
    if tl.atomic_add(ticket_ptr + 2, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        counters = tl.arange(0, 256)
        for first in range(0, sms + SM_COUNTERS, 256):
            at = first + counters
            tl.store(ticket_ptr + at, 0, mask=at < sms + SM_COUNTERS)
