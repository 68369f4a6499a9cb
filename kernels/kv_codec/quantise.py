"""Delta and uniform quantisation of KV token groups, straight from pages and back into them.

    group   anchor      8 bit                          symbols uint8 [layer * 2, token, channel]
            the others  (x - decoded anchor), `bins`   scales  fp16  [layer * 2, token]

A channel is (kv head, dimension). Groups decode on their own, so in parallel. CacheGen (Liu et al.,
SIGCOMM 2024) up to its entropy coder, which belongs to the codec's owner.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

GROUP_TOKENS: Final = 10
ANCHOR_LEVELS: tl.constexpr = tl.constexpr(127)
LARGEST_SCALE: tl.constexpr = tl.constexpr(65504.0)


@triton.jit
def quantise(x, levels):
    """(symbols, fp16 scale). Divisions round correctly, so that every device gives these bits."""
    scale = tl.minimum(tl.max(tl.abs(x), 0), LARGEST_SCALE).to(tl.float16)
    wide = scale.to(tl.float32)
    divisor = tl.where(wide > 0, wide, 1.0)
    placed = tl.floor(tl.div_rn(x * levels, divisor) + (levels + 0.5))
    placed = tl.minimum(tl.maximum(placed, 0.0), 2.0 * levels)
    return tl.where(wide > 0, placed, levels), scale


@triton.jit
def restore(symbols, scale, levels):
    """What the symbols stand for, fp32."""
    return tl.div_rn((symbols - levels) * scale.to(tl.float32), levels)


@triton.jit
def delta_levels_of(bins):
    """Symbols on each side of zero."""
    return tl.minimum(tl.maximum(bins // 2 - 1, 1), ANCHOR_LEVELS).to(tl.float32)


@triton.jit(do_not_specialize=["tokens"])
def encode_groups(
    page_ptr,
    table_ptr,
    bins_ptr,
    symbol_ptr,
    scale_ptr,
    tokens,
    group,
    page_stride,
    half_stride,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """Grid (group, layer * 2 + k|v). WIDTH >= CHANNELS is a power of two."""
    half = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, WIDTH)
    ok = channel < CHANNELS
    inside = (channel // HEAD_DIM) * (BLOCK_TOKENS * HEAD_DIM) + channel % HEAD_DIM
    delta_levels = delta_levels_of(tl.load(bins_ptr + half))
    first = tl.program_id(0) * group
    anchor = tl.zeros([WIDTH], tl.float32)
    levels = delta_levels * 0 + ANCHOR_LEVELS
    for token in range(first, tl.minimum(first + group, tokens)):
        page = tl.load(table_ptr + token // BLOCK_TOKENS).to(tl.int64)
        base = page * page_stride + half * half_stride + (token % BLOCK_TOKENS) * HEAD_DIM
        x = tl.load(page_ptr + base + inside, mask=ok, other=0.0).to(tl.float32)
        symbols, scale = quantise(x - anchor, levels)
        row = half * tokens + token
        tl.store(symbol_ptr + row * CHANNELS + channel, symbols.to(tl.uint8), mask=ok)
        tl.store(scale_ptr + row, scale)
        anchor = tl.where(token == first, restore(symbols, scale, levels), anchor)
        levels = delta_levels


@triton.jit(do_not_specialize=["tokens"])
def decode_groups(
    symbol_ptr,
    scale_ptr,
    bins_ptr,
    page_ptr,
    table_ptr,
    tokens,
    group,
    page_stride,
    half_stride,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """Grid as above, the other way."""
    half = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, WIDTH)
    ok = channel < CHANNELS
    inside = (channel // HEAD_DIM) * (BLOCK_TOKENS * HEAD_DIM) + channel % HEAD_DIM
    delta_levels = delta_levels_of(tl.load(bins_ptr + half))
    first = tl.program_id(0) * group
    anchor = tl.zeros([WIDTH], tl.float32)
    levels = delta_levels * 0 + ANCHOR_LEVELS
    for token in range(first, tl.minimum(first + group, tokens)):
        row = half * tokens + token
        symbols = tl.load(symbol_ptr + row * CHANNELS + channel, mask=ok, other=0).to(tl.float32)
        x = anchor + restore(symbols, tl.load(scale_ptr + row), levels)
        page = tl.load(table_ptr + token // BLOCK_TOKENS).to(tl.int64)
        base = page * page_stride + half * half_stride + (token % BLOCK_TOKENS) * HEAD_DIM
        tl.store(page_ptr + base + inside, x.to(page_ptr.dtype.element_ty), mask=ok)
        anchor = tl.where(token == first, x, anchor)
        levels = delta_levels


def encode_pages(
    pages: torch.Tensor,
    table: torch.Tensor,
    tokens: int,
    bins: torch.Tensor,
    *,
    group: int = GROUP_TOKENS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Code the first `tokens` positions of a sequence. pages [page, layer, 2, kv_head,
    block_tokens, head_dim], finite; table [pages of the sequence] int32; bins [layer * 2] int32 for
    keys and values of each layer, held within 4 to 256. Returns symbols uint8
    [layer * 2, token, channel] and scales float16 [layer * 2, token]. The largest symbol of a delta
    is bins - 2, of an anchor 254. Raises ValueError for shapes that do not fit each other."""
    halves, channels = pages.shape[1] * 2, pages.shape[3] * pages.shape[5]
    symbols = torch.empty((halves, tokens, channels), dtype=torch.uint8, device=pages.device)
    scales = torch.empty((halves, tokens), dtype=torch.float16, device=pages.device)
    _check(pages, table, tokens, bins, group)
    encode_groups[(triton.cdiv(tokens, group), halves)](
        pages, table, bins, symbols, scales, tokens, group, *_layout(pages), **_sizes(pages)
    )
    return symbols, scales


def decode_pages(
    symbols: torch.Tensor,
    scales: torch.Tensor,
    bins: torch.Tensor,
    pages: torch.Tensor,
    table: torch.Tensor,
    *,
    group: int = GROUP_TOKENS,
) -> None:
    """The inverse: fill the positions of `pages` that were coded, in the pages' dtype. Symbols need
    not come from `encode_pages`: any bytes decode to finite numbers. Raises ValueError for shapes
    that do not fit each other."""
    tokens = scales.shape[1]
    _check(pages, table, tokens, bins, group)
    halves, channels = pages.shape[1] * 2, pages.shape[3] * pages.shape[5]
    if symbols.shape != (halves, tokens, channels) or scales.shape != (halves, tokens):
        raise ValueError(f"symbols {list(symbols.shape)} do not fit pages {list(pages.shape)}")
    decode_groups[(triton.cdiv(tokens, group), halves)](
        symbols, scales, bins, pages, table, tokens, group, *_layout(pages), **_sizes(pages)
    )


def _check(
    pages: torch.Tensor, table: torch.Tensor, tokens: int, bins: torch.Tensor, group: int
) -> None:
    if tokens < 1 or group < 1 or tokens > len(table) * pages.shape[4]:
        raise ValueError(f"{len(table)} pages do not hold {tokens} tokens in groups of {group}")
    if bins.shape != (pages.shape[1] * 2,) or not pages[0].is_contiguous():
        raise ValueError(f"bins {list(bins.shape)} do not fit pages {list(pages.shape)}")


def _layout(pages: torch.Tensor) -> tuple[int, int]:
    return pages.stride(0), pages.stride(2)


def _sizes(pages: torch.Tensor) -> dict[str, int]:
    channels = pages.shape[3] * pages.shape[5]
    width = triton.next_power_of_2(channels)
    return {
        "HEAD_DIM": pages.shape[5],
        "CHANNELS": channels,
        "WIDTH": width,
        "BLOCK_TOKENS": pages.shape[4],
        "num_warps": warps(width),
    }


def warps(width: int) -> int:
    """One thread holds about 8 channels."""
    return min(16, max(1, width // 256))
