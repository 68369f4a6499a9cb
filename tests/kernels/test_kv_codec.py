"""The KV codec's kernels give the reference's bits, and errors within what the scales allow."""

from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.kv_codec import reference

BLOCK_TOKENS = 16
BINS = torch.tensor([32, 16, 256, 4], dtype=torch.int32)


def memory(kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    shape = (5, 2, 2, kv_heads, BLOCK_TOKENS, head_dim)
    return torch.randn(shape, generator=generator).to(dtype)


def flat(pages: torch.Tensor, table: torch.Tensor, tokens: int) -> torch.Tensor:
    """[layer * 2, token, channel] of a sequence."""
    picked = pages[table.long()].permute(1, 2, 0, 4, 3, 5)
    return picked.reshape(pages.shape[1] * 2, len(table) * BLOCK_TOKENS, -1)[:, :tokens]


@pytest.mark.parametrize(
    ("tokens", "group", "kv_heads", "head_dim", "dtype"),
    [
        (1, 10, 1, 64, torch.float32),
        (16, 10, 2, 96, torch.float16),
        (37, 10, 3, 64, torch.bfloat16),
        (33, 16, 1, 128, torch.float32),
        (5, 1, 2, 64, torch.float32),
    ],
)
def test_both_ways_give_the_bits_of_the_reference(
    tokens: int, group: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    pages = memory(kv_heads, head_dim, dtype)
    table = torch.tensor([4, 1, 2], dtype=torch.int32)
    symbols, scales = dispatch.encode_pages(pages, table, tokens, BINS, group=group)
    rows = flat(pages, table, tokens).float()
    target = torch.full(pages.shape, float("nan"))
    dispatch.decode_pages(symbols, scales, BINS, target, table, group=group)
    back = flat(target, table, tokens)
    for half, bins in enumerate(BINS.tolist()):
        want_symbols, want_scales = reference.encode(rows[half], bins, group)
        assert torch.equal(symbols[half], want_symbols)
        assert torch.equal(scales[half], want_scales)
        want = reference.decode(want_symbols, want_scales, bins, group)
        assert torch.equal(back[half], want)
    assert int((~target.isnan()).sum()) == rows.numel()


def test_the_error_is_at_most_half_a_step() -> None:
    rows = memory(2, 64, torch.float32)[0, 0, 0].reshape(-1, 64)
    for bins, levels in ((16, 7), (32, 15), (256, 127)):
        symbols, scales = reference.encode(rows, bins, 10)
        error = (reference.decode(symbols, scales, bins, 10) - rows).abs().amax(1)
        steps = scales.float() / torch.where(torch.arange(len(rows)) % 10 == 0, 127, levels)
        assert bool((error <= steps * 0.5 + scales.float() * 2**-10).all())


def test_zero_and_huge_tokens_stay_finite() -> None:
    pages = torch.zeros((1, 1, 2, 1, BLOCK_TOKENS, 64))
    pages[0, 0, 1, 0, 3] = 1e9
    table, bins = torch.zeros(1, dtype=torch.int32), torch.tensor([16, 16], dtype=torch.int32)
    symbols, scales = dispatch.encode_pages(pages, table, 16, bins)
    out = torch.full_like(pages, float("nan"))
    dispatch.decode_pages(symbols, scales, bins, out, table)
    assert not out[0, 0, 0].any()
    assert torch.isfinite(out).all()
    assert float(out[0, 0, 1, 0, 3].max()) == 65504.0


def test_any_bytes_decode_to_finite_numbers() -> None:
    generator = torch.Generator().manual_seed(3)
    symbols = torch.randint(0, 256, (2, 16, 64), generator=generator, dtype=torch.uint8)
    scales = torch.rand((2, 16), generator=generator).half()
    out = torch.zeros((1, 1, 2, 1, BLOCK_TOKENS, 64))
    bins = torch.tensor([0, 9999], dtype=torch.int32)
    dispatch.decode_pages(symbols, scales, bins, out, torch.zeros(1, dtype=torch.int32))
    assert torch.isfinite(out).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    pages, table = memory(1, 64, torch.float32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="hold"):
        dispatch.encode_pages(pages, table, 17, BINS)
    with pytest.raises(ValueError, match="bins"):
        dispatch.encode_pages(pages, table, 3, BINS[:2])
    symbols, scales = dispatch.encode_pages(pages, table, 3, BINS)
    with pytest.raises(ValueError, match="symbols"):
        dispatch.decode_pages(symbols[:, :2], scales, BINS, pages, table)
