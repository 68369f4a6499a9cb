"""RMSNorm and the gate against float64: odd widths, one row, strided rows, three dtypes."""

from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.activation import reference as gate
from kernels.norm import reference as norm

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
CASES = [
    (1, 64, torch.float32),
    (3, 576, torch.bfloat16),
    (5, 1000, torch.float16),
    (2, 4097, torch.float32),
    (7, 1, torch.float32),
]


def rows(count: int, width: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, width), generator=generator).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    limit = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=limit, atol=limit)


@pytest.mark.parametrize(("count", "width", "dtype"), CASES)
def test_rms_norm(count: int, width: int, dtype: torch.dtype) -> None:
    x, weight = rows(count, width, dtype), rows(1, width, dtype, 2)[0]
    close(dispatch.rms_norm(x, weight, 1e-5), norm.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize(("count", "width", "dtype"), CASES)
def test_the_residual_becomes_the_sum_that_is_normed(
    count: int, width: int, dtype: torch.dtype
) -> None:
    x, weight = rows(count, width, dtype), rows(1, width, dtype, 2)[0]
    residual = rows(count, width, dtype, 3)
    want, _ = norm.add_rms_norm(x, residual, weight, 1e-5)
    out = dispatch.add_rms_norm(x, residual_after := residual.clone(), weight, 1e-5)
    close(residual_after, x.double() + residual.double())
    close(out, norm.rms_norm(residual_after, weight, 1e-5))
    close(out, want)


@pytest.mark.parametrize(("count", "width", "dtype"), CASES)
def test_the_gate(count: int, width: int, dtype: torch.dtype) -> None:
    both = rows(count, 2 * width, dtype) * 3
    close(dispatch.silu_mul(both), gate.silu_mul(both))


def test_rows_may_lie_apart() -> None:
    wide = rows(4, 96, torch.float32)
    x, weight = wide[:, 10:74], rows(1, 64, torch.float32, 2)[0]
    close(dispatch.rms_norm(x, weight, 1e-6), norm.rms_norm(x, weight, 1e-6))
    close(dispatch.silu_mul(x), gate.silu_mul(x))


def test_a_gate_far_from_zero_neither_overflows_nor_vanishes() -> None:
    both = torch.tensor([[-1e4, 1e4, -80.0, 0.0, 1.0, 2.0, 3.0, 4.0]])
    close(dispatch.silu_mul(both), gate.silu_mul(both))


def test_no_rows_are_no_work() -> None:
    empty = torch.zeros((0, 8))
    assert dispatch.rms_norm(empty, torch.ones(8), 1e-5).shape == (0, 8)
    assert dispatch.silu_mul(empty).shape == (0, 4)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x = torch.ones((2, 8))
    with pytest.raises(ValueError, match="norm"):
        dispatch.rms_norm(x, torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match="residual"):
        dispatch.add_rms_norm(x, torch.ones((1, 8)), torch.ones(8), 1e-5)
    with pytest.raises(ValueError, match="gate"):
        dispatch.silu_mul(torch.ones((2, 7)))
