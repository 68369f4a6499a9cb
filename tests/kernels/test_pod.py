"""The fused launch: the same bits as two launches, whoever takes which item, and no ticket lost."""

from __future__ import annotations

import random

import pytest
import torch
import triton
import triton.language as tl

from kernels import dispatch
from kernels.paged_attention import fusing, launch
from kernels.paged_attention.measure import measure_costs
from kernels.paged_attention.pod import wants_prefill
from kernels.paged_attention.scratch import FusedScratch
from tests.kernels.pages import Shape, Step, step

MIXED = [(40, 1), (0, 9), (99, 1), (64, 6), (0, 1)]


def fuse(given: Step, scratch: FusedScratch) -> torch.Tensor:
    out = given.run(dispatch.Fusing(scratch, choice="always"))
    assert scratch.idle()
    return out


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(1, 1, 96, torch.float16),
        Shape(8, 1, 128, torch.bfloat16),
        Shape(5, 1, 64, torch.float16, window=40),
        Shape(2, 1, 96, torch.bfloat16, window=40, cap=1.5),
    ],
    ids=str,
)
def test_one_launch_gives_the_bits_of_two(shape: Shape) -> None:
    given = step(MIXED, shape, span_tokens=64)
    out = fuse(given, FusedScratch(given.q.device, sms=3))
    assert torch.equal(out, given.run())
    tolerance = shape.tolerance
    torch.testing.assert_close(out.float(), given.expected(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_programs_in_any_order_give_the_same_bits(seed: int) -> None:
    """A bounded number of items each, so that programs take turns; on whatever SM they are."""
    draw = random.Random(seed)
    given = step(MIXED, Shape(2, 2), span_tokens=32)
    scratch = FusedScratch(given.q.device, sms=draw.choice([1, 2, 5]), occupancy=8)
    entries, prefill = given.tables.entries, given.tables.prefill
    assert entries is not None
    assert prefill is not None
    items = 2 * (len(entries.items) + len(prefill.tile_items))
    scratch.quota = draw.randrange(-(-items // scratch.programs), 12)
    order = [draw.randrange(scratch.sms) for _ in range(scratch.programs)]
    scratch.program_sms = torch.tensor(order, dtype=torch.int32)
    want = given.run()
    assert torch.equal(fuse(given, scratch), want)


def test_scratch_is_reused_by_steps_of_other_sizes() -> None:
    scratch = FusedScratch(torch.device("cpu"), sms=300)
    scratch.programs = 3
    for lengths in ([(3, 1), (0, 2)], [(150, 1), (5, 1), (0, 3)]):
        given = step(lengths, Shape(2, 1), span_tokens=64)
        assert torch.equal(fuse(given, scratch), given.run())


@triton.jit  # type: ignore[untyped-decorator]
def choose(out_ptr, prefill_items, decode_items, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    for ticket in range(COUNT):
        tl.store(out_ptr + ticket, wants_prefill(ticket, prefill_items, decode_items).to(tl.int32))


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 7), (7, 2), (5, 5), (3, 40), (0, 4)])
def test_an_sm_gets_both_kinds_in_proportion(prefill: int, decode: int) -> None:
    taken = torch.zeros(60, dtype=torch.int32)
    choose[(1,)](taken, prefill, decode, COUNT=60)
    scarce, plenty = sorted((prefill, decode))
    share = 1 / (plenty // max(scarce, 1) + 1)
    assert float(taken.float().mean()) == pytest.approx(
        share if prefill <= decode else 1 - share, abs=1 / 60
    )
    assert bool(taken[0])


def test_a_step_of_one_kind_is_not_fused() -> None:
    given = step([(40, 1), (3, 1)], Shape(2, 1))
    scratch = FusedScratch(given.q.device, sms=2)
    assert not dispatch.Fusing(scratch, choice="always").chosen(given.tables, given.q.dtype)
    shapes = launch.shapes(given.tables, given.q, given.kv, given.scale, upcast=True)
    with pytest.raises(ValueError, match="both"):
        launch.fused(given.tables, given.q, given.kv, given.q.clone(), shapes, scratch)


@pytest.mark.parametrize(
    ("prefill_us", "decode_us", "fuse"),
    [(100, 100, True), (1000, 24, False), (24, 1000, False), (1000, 200, True), (1000, 90, False)],
)
def test_fusing_must_pay(prefill_us: float, decode_us: float, fuse: bool) -> None:
    assert fusing.pays(prefill_us * 1e-6, decode_us * 1e-6) is fuse


def test_costs_follow_the_measured_table() -> None:
    table = fusing.table([(300.0, 5.0), (100.0, 1.0), (200.0, 2.0)])
    assert [table.at(x) for x in (0, 100, 150, 200, 250, 400)] == [1, 1, 1.5, 2, 3.5, 8]
    with pytest.raises(ValueError, match="ascending"):
        fusing.LaunchCost((1.0, 1.0), (1.0, 2.0))


def test_costs_are_measured_over_growing_work() -> None:
    ticks = iter(range(1, 7))
    kv = torch.zeros((3, 2, 1, 16, 64))
    costs = measure_costs(kv, 2, stopwatch=lambda run: next(ticks))
    assert costs.prefill.works == tuple(n * (n + 1) / 2 for n in (128, 512, 2048))
    assert costs.decode.works == (8 * 512, 32 * 1024, 64 * 2048)
    assert (costs.prefill.seconds, costs.decode.seconds) == ((1, 2, 3), (4, 5, 6))


def test_auto_needs_measured_costs() -> None:
    tables = step(MIXED, Shape(2, 1)).tables
    scratch = FusedScratch(torch.device("cpu"), sms=2)
    dear = fusing.table([(0.0, 1.0), (1e6, 2.0)])
    cheap = fusing.table([(0.0, 1e-6), (1e6, 2e-6)])
    assert not dispatch.Fusing(scratch).chosen(tables, torch.bfloat16)
    assert dispatch.Fusing(scratch, fusing.AttentionCosts(dear, dear)).chosen(
        tables, torch.bfloat16
    )
    assert not dispatch.Fusing(scratch, fusing.AttentionCosts(dear, dear)).chosen(
        tables, torch.float32
    )
    assert not dispatch.Fusing(scratch, fusing.AttentionCosts(dear, cheap)).chosen(
        tables, torch.bfloat16
    )
    assert not dispatch.Fusing(scratch, fusing.AttentionCosts(dear, dear), "never").chosen(
        tables, torch.bfloat16
    )
