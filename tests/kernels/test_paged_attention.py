"""Both attention kernels against the float32 reference, in Triton's interpreter."""

from __future__ import annotations

import random

import pytest
import torch

from kernels import dispatch
from kernels.paged_attention import plan, reference

BLOCK_TOKENS = 16
PAGES = 48


def memory(kv_heads: int, head_dim: int, dtype: torch.dtype, layers: int = 2) -> torch.Tensor:
    """Random page memory of two layers; a kernel sees the second one, a strided view."""
    generator = torch.Generator().manual_seed(1)
    shape = (PAGES, layers, 2, kv_heads, BLOCK_TOKENS, head_dim)
    return torch.randn(shape, generator=generator).to(dtype)


def spans(lengths: list[tuple[int, int]], seed: int = 3) -> list[plan.Span]:
    """(start, count) items over shuffled, disjoint pages."""
    free = list(range(1, PAGES))
    random.Random(seed).shuffle(free)
    made = []
    for start, count in lengths:
        need = -(-(start + count) // BLOCK_TOKENS)
        made.append(plan.Span(start, count, [free.pop() for _ in range(need)]))
    return made


def poison(kv: torch.Tensor, items: list[plan.Span]) -> None:
    """NaN in every position that no item may read."""
    for page in set(range(1, PAGES)) - {page for item in items for page in item.pages}:
        kv[page] = float("nan")
    for item in items:
        used = (item.start + item.count) % BLOCK_TOKENS
        if used:
            kv[item.pages[-1], :, :, :, used:] = float("nan")


def compare(
    lengths: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    kv = memory(kv_heads, head_dim, dtype)
    items = spans(lengths)
    poison(kv, items)
    rows = sum(item.count for item in items)
    q = torch.randn((rows, heads, head_dim), generator=torch.Generator().manual_seed(2)).to(dtype)
    scale = head_dim**-0.5
    layer = kv[:, 1]
    tables = plan.build(items, heads // kv_heads, q.device)
    out = dispatch.paged_attention(tables, q, layer, scale, upcast=True)
    row = 0
    for item in items:
        part = slice(row, row + item.count)
        want = reference.attend(q[part].float(), layer, torch.tensor(item.pages), item.start, scale)
        torch.testing.assert_close(out[part].float(), want, atol=tolerance, rtol=tolerance)
        row += item.count


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 64, 65])
def test_decode_reads_exactly_its_positions(length: int) -> None:
    compare([(length - 1, 1)], 9, 3, 64, torch.float32, 1e-5)


@pytest.mark.parametrize(("start", "count"), [(0, 2), (0, 16), (0, 37), (16, 16), (5, 40), (32, 2)])
def test_prefill_is_causal_from_any_start(start: int, count: int) -> None:
    compare([(start, count)], 9, 3, 64, torch.float32, 1e-5)


@pytest.mark.parametrize("group", [1, 2, 3, 7, 16])
def test_query_head_groups(group: int) -> None:
    compare([(20, 1), (3, 9)], 2 * group, 2, 64, torch.float32, 1e-5)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_head_dimensions(head_dim: int) -> None:
    compare([(20, 1), (3, 9)], 4, 2, head_dim, torch.float32, 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precisions(dtype: torch.dtype, tolerance: float) -> None:
    compare([(20, 1), (3, 9)], 4, 2, 64, dtype, tolerance)


def test_a_mixed_step_of_odd_items() -> None:
    compare([(40, 1), (0, 21), (99, 1), (64, 30), (0, 1)], 6, 2, 64, torch.float32, 1e-5)


def test_splits_of_a_long_sequence_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "DECODE_SPAN_TOKENS", 64)
    monkeypatch.setattr(dispatch, "DECODE_SPAN_TOKENS", 64)
    compare([(300, 1), (10, 1), (127, 1)], 6, 2, 64, torch.float32, 1e-5)


def test_scores_far_apart_do_not_overflow() -> None:
    kv = memory(1, 64, torch.float32)[:, 0] * 60
    q = torch.randn((1, 2, 64), generator=torch.Generator().manual_seed(5)) * 60
    (item,) = spans([(50, 1)])
    out = dispatch.paged_attention(plan.build([item], 2, q.device), q, kv, 1.0)
    want = reference.attend(q, kv, torch.tensor(item.pages), 50, 1.0)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out, want, atol=1e-4, rtol=1e-4)


def test_the_reference_agrees_with_torch() -> None:
    kv = memory(2, 64, torch.float32)[:, 1]
    (item,) = spans([(0, 40)])
    q = torch.randn((40, 4, 64), generator=torch.Generator().manual_seed(2))
    keys, values = reference.gather(kv, torch.tensor(item.pages), 40)
    want = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys.repeat_interleave(2, 0)[None],
        values.repeat_interleave(2, 0)[None],
        is_causal=True,
        scale=0.125,
    )
    got = reference.attend(q, kv, torch.tensor(item.pages), 0, 0.125)
    torch.testing.assert_close(got, want[0].transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_an_empty_span_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a query"):
        plan.build([plan.Span(0, 0, [1])], 1, torch.device("cpu"))
