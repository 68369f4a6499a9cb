"""RMSNorm of a row by one program, alone and fused with the residual addition before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def rms_rows(x_ptr, weight_ptr, out_ptr, hidden, eps, x_row_stride, BLOCK: tl.constexpr):
    """Grid (row). BLOCK >= hidden is a power of two; the row stays in registers."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    ok = at < hidden
    x = tl.load(x_ptr + row * x_row_stride + at, mask=ok, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=ok, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / hidden + eps)
    tl.store(out_ptr + row * hidden + at, (x * scale * weight).to(out_ptr.dtype.element_ty), ok)


@triton.jit
def add_rms_rows(
    x_ptr, residual_ptr, weight_ptr, out_ptr, hidden, eps, x_row_stride, BLOCK: tl.constexpr
):
    """Grid (row). The residual becomes residual + x, rounded to its dtype before it is normed."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    ok = at < hidden
    x = tl.load(x_ptr + row * x_row_stride + at, mask=ok, other=0.0).to(tl.float32)
    residual_at = residual_ptr + row * hidden + at
    before = tl.load(residual_at, mask=ok, other=0.0).to(tl.float32)
    added = (x + before).to(residual_ptr.dtype.element_ty)
    tl.store(residual_at, added, ok)
    wide = added.to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=ok, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / hidden + eps)
    tl.store(out_ptr + row * hidden + at, (wide * scale * weight).to(out_ptr.dtype.element_ty), ok)


def warps(block: int) -> int:
    """Enough threads that one holds 8 to 16 elements of a row."""
    return min(16, max(1, block // 256))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [rows, hidden], last dimension contiguous; weight [hidden]. Returns [rows, hidden]."""
    _check(x, weight)
    rows, hidden = x.shape
    out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(hidden)
    if rows:
        rms_rows[(rows,)](
            x, weight, out, hidden, eps, x.stride(0), BLOCK=block, num_warps=warps(block)
        )
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """The norm of x + residual, [rows, hidden]; `residual`, contiguous, becomes that sum."""
    _check(x, weight)
    if residual.shape != x.shape or not residual.is_contiguous():
        raise ValueError(f"a residual of {list(residual.shape)} does not fit {list(x.shape)}")
    rows, hidden = x.shape
    out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(hidden)
    if rows:
        add_rms_rows[(rows,)](
            x, residual, weight, out, hidden, eps, x.stride(0), BLOCK=block, num_warps=warps(block)
        )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    if x.dim() != 2 or weight.shape != x.shape[1:] or x.stride(1) != 1:
        raise ValueError(f"a norm of {list(weight.shape)} does not fit rows {list(x.shape)}")
