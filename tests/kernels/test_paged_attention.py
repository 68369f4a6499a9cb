"""Decode and prefill attention against the float64 reference, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from kernels import dispatch
from kernels.paged_attention import plan, reference
from tests.kernels.pages import Shape, spans, step


def compare(lengths: list[tuple[int, int]], shape: Shape, span_tokens: int = 512) -> None:
    given = step(lengths, shape, span_tokens=span_tokens)
    tolerance = shape.tolerance
    torch.testing.assert_close(
        given.run().float(), given.expected(), atol=tolerance, rtol=tolerance
    )


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
    Shape(2, 1, 256, torch.float32),
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


@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 1, 64, torch.float32, cap=0.4),
        Shape(2, 2, 256, torch.bfloat16, cap=1.5),
        Shape(3, 1, 96, torch.float16, cap=50.0),
        Shape(8, 1, 128, torch.float32, window=33, cap=1.5),
    ],
    ids=str,
)
def test_capped_scores_at_odd_lengths_and_over_splits(shape: Shape) -> None:
    """What is masked stays out, though a score bent from -inf would be a finite -cap."""
    compare([(98, 1), (0, 21), (62, 1), (63, 7), (0, 1), (16, 1)], shape, span_tokens=32)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e4, 1e30])
def test_a_cap_is_exact_at_zero_and_finite_at_both_ends(size: float) -> None:
    """Keys +x, -x and 0 have scores s, -s and 0; values name the key."""
    kv = torch.zeros((1, 2, 1, 16, 64))
    kv[0, 0, 0, :2, 0] = torch.tensor([size, -size])
    kv[0, 1, 0, :3, :3] = torch.eye(3)
    q = torch.zeros((1, 1, 64))
    q[0, 0, 0] = 2.0
    tables = plan.build([plan.Span(2, 1, [0])], 1, q.device)
    out = dispatch.paged_attention(tables, q, kv, 0.5, cap=5.0)
    wanted = reference.attend(q.double(), kv, torch.tensor([0]), 2, 0.5, None, 5.0).float()
    torch.testing.assert_close(out, wanted, atol=1e-6, rtol=2e-6)
    assert size > 1e-20 or bool((out[0, 0, :3] == out[0, 0, 0]).all())


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


def test_plans_of_several_windows_share_their_tables() -> None:
    """But for how many splits a window needs."""
    made = plan.build_each(
        spans([(150, 1), (0, 9), (20, 1)], 1), 2, torch.device("cpu"), [None, 40], span_tokens=64
    )
    whole, near = made[None], made[40]
    assert whole.decode is not None and near.decode is not None
    assert (whole.decode.splits, near.decode.splits) == (3, 1)
    assert whole.decode.tables is near.decode.tables and whole.decode.lengths is near.decode.lengths
    assert whole.prefill is near.prefill
    assert (whole.decode_keys, near.decode_keys) == (151 + 21, 40 + 21)


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
