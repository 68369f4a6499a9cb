"""Launches the attention of a step: its two halves one after the other, or fused.

Knows tensors and plans; not where pages come from.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import triton

from kernels.paged_attention.decode import decode_join, decode_split
from kernels.paged_attention.plan import PREFILL_ROWS, AttentionPlan, DecodePlan, PrefillPlan
from kernels.paged_attention.pod import pod_step
from kernels.paged_attention.prefill import prefill_tile
from kernels.paged_attention.scratch import FusedScratch

LOG2_E: Final = 1.4426950408889634
NO_WINDOW: Final = 2**30
MIN_ROWS: Final = 16


@dataclass(frozen=True, slots=True)
class Tiles:
    """Compile-time sizes: keys per loop turn, warps, pipeline stages, and whether prefill masks
    every tile in one loop (fewer registers) or only those on the diagonal, in a second one."""

    decode_keys: int
    prefill_keys: int
    warps: int
    stages: int
    mask_all: bool = False
    fused_stages: int = 2
    fused_mask_all: bool = True
    """The same where both halves share a launch, and so the registers. None of them changes a bit
    of the result."""


HALF_TILES: Final = Tiles(decode_keys=64, prefill_keys=64, warps=4, stages=2)
WIDE_AMPERE_TILES: Final = Tiles(32, 32, warps=4, stages=2, mask_all=True)
"""Before sm_90 operands of a product live in registers, which more keys or a second loop of wide
heads would overflow."""
NARROW_AMPERE_TILES: Final = replace(HALF_TILES, fused_mask_all=False)
PADDED_AMPERE_TILES: Final = replace(WIDE_AMPERE_TILES, fused_stages=1)
PAIRED_HEAD_DIM: Final = 128
"""Of wider heads one fused program fills an SM, by eight warps that share its sums."""
WIDEST_AMPERE_TILES: Final = Tiles(32, 32, warps=8, stages=2, mask_all=True, fused_stages=1)
WIDEST_HOPPER_TILES: Final = Tiles(32, 32, warps=8, stages=2)
WIDEST_BLACKWELL_TILES: Final = Tiles(32, 64, warps=8, stages=2, mask_all=True, fused_stages=1)
FLOAT_TILES: Final = Tiles(32, 32, warps=8, stages=1, fused_stages=1)
"""float32 is multiplied without tensor cores, whose operands would lose bits."""
WIDE_AMPERE_FLOAT_TILES: Final = Tiles(32, 16, warps=4, stages=1, mask_all=True, fused_stages=1)
WIDE_FLOAT_TILES: Final = Tiles(32, 64, warps=16, stages=1, mask_all=True, fused_stages=1)
WIDEST_FLOAT_TILES: Final = Tiles(32, 16, warps=8, stages=1, fused_stages=1)


def tiles(dtype: torch.dtype, head_dim: int, capability: int) -> Tiles:
    """The default configuration for a device generation (80, 90, …); two programs of heads up to
    PAIRED_HEAD_DIM fit on an SM."""
    if dtype == torch.float32:
        return _float(head_dim, capability)
    if head_dim > PAIRED_HEAD_DIM:
        return _widest(capability)
    if capability >= 90:
        return HALF_TILES
    if head_dim <= 64:
        return NARROW_AMPERE_TILES
    return WIDE_AMPERE_TILES if head_dim == 128 else PADDED_AMPERE_TILES


def _float(head_dim: int, capability: int) -> Tiles:
    if head_dim > PAIRED_HEAD_DIM:
        return WIDEST_FLOAT_TILES
    if head_dim <= 64:
        return FLOAT_TILES
    return WIDE_FLOAT_TILES if capability >= 90 else WIDE_AMPERE_FLOAT_TILES


def _widest(capability: int) -> Tiles:
    if capability >= 100:
        return WIDEST_BLACKWELL_TILES
    return WIDEST_HOPPER_TILES if capability >= 90 else WIDEST_AMPERE_TILES


@functools.cache
def capability(device: torch.device) -> int:
    """Generation of a CUDA device; that of the newest for the interpreter."""
    if device.type != "cuda":
        return 100
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@dataclass(frozen=True, slots=True)
class Shapes:
    """What the kernels are told about the tensors of a step."""

    scale: float
    """Includes log2(e): the kernels take powers of two."""
    window: int
    strides: tuple[int, int, int, int]
    """Of a query row, and of kv pages, halves and heads."""
    group: int
    tiles: Tiles
    sizes: dict[str, Any]


def shapes(
    plan: AttentionPlan,
    q: torch.Tensor,
    kv: torch.Tensor,
    scale: float,
    *,
    upcast: bool,
    cap: float = 0.0,
) -> Shapes:
    """Raises ValueError for tensors that the kernels would read wrongly."""
    heads, head_dim = q.shape[1:]
    if kv.dim() != 5 or kv.shape[1] != 2 or kv.shape[4] != head_dim or heads % kv.shape[2]:
        raise ValueError(f"queries {list(q.shape)} do not fit pages {list(kv.shape)}")
    if q.dtype != kv.dtype or not q.is_contiguous() or kv.stride()[3:] != (head_dim, 1):
        raise ValueError("queries and pages need one dtype, contiguous heads and blocks")
    group = heads // kv.shape[2]
    return Shapes(
        scale=scale * LOG2_E,
        window=plan.window or NO_WINDOW,
        strides=(q.stride(0), kv.stride(0), kv.stride(1), kv.stride(2)),
        group=group,
        tiles=tiles(q.dtype, head_dim, capability(q.device)),
        sizes={
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "DIM": triton.next_power_of_2(head_dim),
            "BLOCK_TOKENS": kv.shape[3],
            "UPCAST": upcast or q.dtype == torch.float32,
            "CAP": cap * LOG2_E,
        },
    )


def decode_rows(group: int) -> int:
    """Rows of a decode tile: the group's query heads, padded to what a tensor core takes."""
    return max(MIN_ROWS, int(triton.next_power_of_2(group)))


def prefill_rows(group: int) -> int:
    """Rows of a prefill tile."""
    return max(PREFILL_ROWS, int(triton.next_power_of_2(group)))


def serial(
    plan: AttentionPlan, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, given: Shapes
) -> None:
    """One launch for the prefill half, two (splits, join) for the decode half."""
    if plan.prefill is not None:
        _prefill(plan.prefill, plan.window is not None, q, kv, out, given)
    if plan.decode is not None:
        _decode(plan.decode, q, kv, out, given)


def _decode(
    plan: DecodePlan, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, given: Shapes
) -> None:
    items, kv_heads = len(plan.rows), kv.shape[2]
    head_dim, chosen = q.shape[2], given.tiles
    parts = items * q.shape[1] * plan.splits
    acc = torch.empty((parts, head_dim), dtype=torch.float32, device=q.device)
    peaks, sums = torch.empty((2, parts), dtype=torch.float32, device=q.device)
    rows = decode_rows(given.group)
    decode_split[(items, kv_heads, plan.splits)](
        q,
        kv,
        plan.rows,
        plan.lengths,
        plan.tables,
        acc,
        peaks,
        sums,
        given.scale,
        given.window,
        *given.strides,
        plan.tables.stride(0),
        ROWS=rows,
        TILE=chosen.decode_keys,
        SPAN=plan.span_tokens,
        STAGES=chosen.stages,
        num_warps=chosen.warps,
        **given.sizes,
    )
    sizes = {name: given.sizes[name] for name in ("GROUP", "HEAD_DIM", "DIM")}
    decode_join[(items, kv_heads)](
        acc, peaks, sums, out, plan.rows, plan.splits, out.stride(0), ROWS=rows, **sizes
    )


def _prefill(
    plan: PrefillPlan,
    windowed: bool,
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    given: Shapes,
) -> None:
    chosen = given.tiles
    prefill_tile[(len(plan.tile_items), kv.shape[2])](
        q,
        kv,
        out,
        plan.tables,
        plan.tile_items,
        plan.tile_firsts,
        plan.item_rows,
        plan.item_starts,
        plan.item_counts,
        given.scale,
        given.window,
        *given.strides,
        plan.tables.stride(0),
        ROWS=prefill_rows(given.group),
        TILE=chosen.prefill_keys,
        MASK_ALL=windowed or chosen.mask_all,
        STAGES=chosen.stages,
        num_warps=chosen.warps,
        **given.sizes,
    )


def fused(
    plan: AttentionPlan,
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    given: Shapes,
    scratch: FusedScratch,
) -> None:
    """Both halves in one persistent launch. Raises ValueError for a step without one of them."""
    decode, prefill, entries = plan.decode, plan.prefill, plan.entries
    if decode is None or prefill is None or entries is None:
        raise ValueError("a fused launch needs both prefill and decode items")
    kv_heads, chosen = kv.shape[2], given.tiles
    scratch.reserve(len(entries.items), len(decode.rows) * kv_heads, q.shape[1], q.shape[2])
    pod_step[(scratch.programs,)](
        q,
        kv,
        out,
        prefill.tables,
        prefill.tile_items,
        prefill.tile_firsts,
        prefill.item_rows,
        prefill.item_starts,
        prefill.item_counts,
        decode.tables,
        decode.rows,
        decode.lengths,
        entries.items,
        entries.splits,
        entries.split_counts,
        entries.firsts,
        scratch.acc,
        scratch.peaks,
        scratch.sums,
        scratch.tickets,
        scratch.arrivals,
        scratch.program_sms,
        scratch.sms,
        len(prefill.tile_items) * kv_heads,
        len(entries.items) * kv_heads,
        kv_heads,
        scratch.quota,
        given.scale,
        given.window,
        *given.strides,
        prefill.tables.stride(0),
        decode.tables.stride(0),
        PREFILL_ROWS=prefill_rows(given.group),
        DECODE_ROWS=decode_rows(given.group),
        PREFILL_TILE=chosen.prefill_keys,
        DECODE_TILE=chosen.decode_keys,
        SPAN=decode.span_tokens,
        MASK_ALL=plan.window is not None or chosen.fused_mask_all,
        HARDWARE_SM=q.device.type == "cuda",
        STAGES=chosen.fused_stages,
        num_warps=chosen.warps,
        **given.sizes,
    )
