"""Decode and prefill attention against the float32 reference, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.paged_attention import plan, reference
from tests.kernels.pages import Shape, spans, step


def compare(lengths: list[tuple[int, int]], shape: Shape, span_tokens: int = 512) -> None:
    given = step(lengths, shape, span_tokens=span_tokens)
    out = dispatch.paged_attention(given.tables, given.q, given.kv, given.scale, upcast=True)
    tolerance = shape.tolerance
    torch.testing.assert_close(out.float(), given.expected(), atol=tolerance, rtol=tolerance)


def test_decode_reads_exactly_its_positions() -> None:
    compare([(length - 1, 1) for length in (1, 15, 16, 17, 64, 65)], Shape())


@pytest.mark.parametrize("group", [1, 2, 4, 5, 8])
def test_prefill_is_causal_from_any_start(group: int) -> None:
    compare([(0, 2), (0, 16), (0, 37), (16, 16), (5, 40), (62, 3)], Shape(group, kv_heads=1))


PAIRS = [
    Shape(1, 1, 64, torch.float16),
    Shape(2, 1, 96, torch.bfloat16),
    Shape(3, 2, 128, torch.float32),
    Shape(4, 1, 128, torch.bfloat16),
    Shape(6, 1, 64, torch.bfloat16, window=33),
    Shape(7, 1, 96, torch.float16, window=16),
    Shape(8, 1, 96, torch.float32),
    Shape(8, 1, 128, torch.float16),
]


@pytest.mark.parametrize("shape", PAIRS, ids=str)
def test_a_mixed_step_in_each_shape(shape: Shape) -> None:
    compare([(40, 1), (0, 21), (63, 1), (64, 6), (0, 1)], shape)


@pytest.mark.parametrize("window", [1, 7, 64, 1000])
def test_a_window_hides_what_is_before_it(window: int) -> None:
    lengths = [(90, 1), (0, 50), (100, 20), (2, 1)]
    compare(lengths, Shape(kv_heads=1, window=window), span_tokens=64)


def test_splits_of_a_long_sequence_are_joined() -> None:
    compare([(300, 1), (10, 1), (127, 1)], Shape(), span_tokens=64)


def test_scores_far_apart_do_not_overflow() -> None:
    given = step([(50, 1), (0, 3)], Shape(2, 1))
    q, kv = given.q * 60, given.kv * 60
    out = dispatch.paged_attention(given.tables, q, kv, 1.0)
    table = torch.tensor(given.items[0].pages)
    torch.testing.assert_close(
        out[:1], reference.attend(q[:1], kv, table, 50, 1.0), atol=1e-3, rtol=1e-4
    )
    assert torch.isfinite(out).all()


def test_the_reference_agrees_with_torch() -> None:
    given = step([(0, 40)], Shape(2, 2))
    keys, values = reference.gather(given.kv, torch.tensor(given.items[0].pages), 40)
    want = torch.nn.functional.scaled_dot_product_attention(
        given.q.transpose(0, 1)[None],
        keys.repeat_interleave(2, 0)[None],
        values.repeat_interleave(2, 0)[None],
        is_causal=True,
        scale=0.125,
    )
    torch.testing.assert_close(given.expected(), want[0].transpose(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("start", "count"), [(0, 5), (3, 4), (7, 1), (30, 9)])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_a_plan_counts_the_pairs_it_will_read(start: int, count: int, window: int | None) -> None:
    made = plan.build(spans([(start, count)], 1), 1, torch.device("cpu"), window=window)
    seen = [min(p + 1, window or p + 1) for p in range(start, start + count)]
    assert made.prefill_pairs + made.decode_keys == sum(seen)


def test_bad_spans_and_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a query"):
        plan.build([plan.Span(0, 0, [1])], 1, torch.device("cpu"))
    with pytest.raises(ValueError, match="window"):
        plan.build([plan.Span(0, 1, [1])], 1, torch.device("cpu"), window=0)


def test_tensors_that_do_not_fit_are_refused() -> None:
    given = step([(4, 1)], Shape(2, 2))
    for q in (given.q[:, :3], given.q.half(), given.q[:, :, :32].contiguous(), given.q[:, ::2]):
        with pytest.raises(ValueError, match="queries"):
            dispatch.paged_attention(given.tables, q, given.kv, 1.0)
