"""SiLU of the gate times the other half, from the one matrix that both were projected into."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

BLOCK: Final = 1024


@triton.jit
def silu_mul_rows(gate_up_ptr, out_ptr, width, row_stride, BLOCK: tl.constexpr):
    """Grid (row, block of the width)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = at < width
    gate = tl.load(gate_up_ptr + row * row_stride + at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * row_stride + width + at, mask=ok, other=0.0).to(tl.float32)
    # The exponent is never positive, so nothing overflows.
    small = tl.exp(-tl.abs(gate))
    share = tl.where(gate >= 0, 1.0, small) / (1.0 + small)
    tl.store(out_ptr + row * width + at, (gate * share * up).to(out_ptr.dtype.element_ty), mask=ok)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [rows, 2 * width], last dimension contiguous, the gate first. Returns [rows, width]
    in its dtype. Raises ValueError for another shape."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        raise ValueError(f"{list(gate_up.shape)} is not rows of a gate and as much besides")
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = (rows, triton.cdiv(width, BLOCK))
        silu_mul_rows[grid](gate_up, out, width, gate_up.stride(0), BLOCK=BLOCK)
    return out
