"""Page gather and scatter: runs of neighbouring heads between pages and a staging buffer.

    page     [layer, k|v, kv_head, token, head_dim]      heads first_head.. of one (layer, k|v) are
    staging  [id, layer, k|v, heads, token, head_dim]    one run of heads * token * head_dim values

So a peer with other tensor parallelism is served by choosing first_head and heads. Two dtypes that
differ are converted by value; equal ones are copied bit for bit.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

CHUNK: Final = 2048


@triton.jit
def gather_runs(
    page_ptr,
    id_ptr,
    staging_ptr,
    run_size,
    first_element,
    page_stride,
    half_stride,
    CHUNK: tl.constexpr,
):
    """Grid (id, layer * 2 + k|v, chunk of the run)."""
    page = tl.load(id_ptr + tl.program_id(0)).to(tl.int64)
    half = tl.program_id(1)
    at = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    ok = at < run_size
    source = page_ptr + page * page_stride + half.to(tl.int64) * half_stride + first_element
    run = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + half
    value = tl.load(source + at, mask=ok)
    tl.store(staging_ptr + run * run_size + at, value.to(staging_ptr.dtype.element_ty), mask=ok)


@triton.jit
def scatter_runs(
    page_ptr,
    id_ptr,
    staging_ptr,
    run_size,
    first_element,
    page_stride,
    half_stride,
    CHUNK: tl.constexpr,
):
    """Grid as above, the other way. Two equal ids would race."""
    page = tl.load(id_ptr + tl.program_id(0)).to(tl.int64)
    half = tl.program_id(1)
    at = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    ok = at < run_size
    run = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + half
    value = tl.load(staging_ptr + run * run_size + at, mask=ok)
    target = page_ptr + page * page_stride + half.to(tl.int64) * half_stride + first_element
    tl.store(target + at, value.to(page_ptr.dtype.element_ty), mask=ok)


def gather_pages(
    pages: torch.Tensor,
    ids: torch.Tensor,
    *,
    first_head: int = 0,
    heads: int | None = None,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Copy heads [first_head, +heads) of the pages `ids` (int32, on the device, below the number of
    pages) from [page, layer, 2, kv_head, block_tokens, head_dim] into a contiguous
    [id, layer, 2, heads, block_tokens, head_dim] of `dtype`, or into `out`."""
    taken = pages.shape[3] - first_head if heads is None else heads
    shape = (len(ids), *pages.shape[1:3], taken, *pages.shape[4:])
    if out is None:
        out = torch.empty(shape, dtype=dtype or pages.dtype, device=pages.device)
    _launch(gather_runs, pages, ids, out, first_head)
    return out


def scatter_pages(
    staged: torch.Tensor, pages: torch.Tensor, ids: torch.Tensor, *, first_head: int = 0
) -> None:
    """The inverse: put `staged` [id, layer, 2, heads, block_tokens, head_dim] at head `first_head`
    of the pages `ids`, which must be distinct. Other heads and pages stay as they are."""
    _launch(scatter_runs, pages, ids, staged, first_head)


def _launch(
    kernel: triton.JITFunction,
    pages: torch.Tensor,
    ids: torch.Tensor,
    staging: torch.Tensor,
    first_head: int,
) -> None:
    """Raises ValueError for shapes that the kernel would read wrongly."""
    layers, halves, kv_heads, tokens, head_dim = pages.shape[1:]
    heads = staging.shape[3]
    if staging.shape != (len(ids), layers, halves, heads, tokens, head_dim):
        raise ValueError(f"staging {list(staging.shape)} does not fit pages {list(pages.shape)}")
    if first_head < 0 or heads < 1 or first_head + heads > kv_heads:
        raise ValueError(f"heads [{first_head}, +{heads}) are not among {kv_heads}")
    if not staging.is_contiguous() or not pages[0].is_contiguous():
        raise ValueError("pages and staging must be contiguous")
    if not len(ids):
        return
    run = heads * tokens * head_dim
    kernel[(len(ids), layers * halves, triton.cdiv(run, CHUNK))](
        pages,
        ids,
        staging,
        run,
        first_head * tokens * head_dim,
        pages.stride(0),
        pages.stride(2),
        CHUNK=CHUNK,
    )
