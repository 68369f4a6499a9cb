"""The compiled operations against torch, and their promise: a row does not depend on company."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
import torch

from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import StepItem
from shared.engine.host_attention import HostAttention, Workspace
from shared.engine.host_pages import HostPages
from shared.engine.native.attention import NativeAttention, fits
from shared.engine.native.library import native
from shared.engine.native.operations import NativeOperations
from shared.engine.native.packing import PackedMatrix, pack_blocks, pack_dense, pack_int8
from shared.engine.operations import TorchOperations
from shared.engine.paged_kv import PagedKv
from shared.ids import PageId
from shared.kv.layout import PageLayout

from . import processors
from .stored import stored_matrix

LIBRARY = native().functions
ROWS = (1, 2, 5, 6, 7, 50)
STORED = ("q8_0", "q4_0", "q4_1")


@pytest.fixture(autouse=True, params=processors.names("plain", "narrow"))
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as processors without bfloat16, and with vectors half as long, have it."""
    processors.use(request.param, __name__, monkeypatch, rounded=False)


def kv_of(dtype: str = "float32", head_dim: int = 64, block: int = 16) -> PagedKv:
    layout = PageLayout(2, 2, head_dim, block, dtype)
    kv = PagedKv(torch.from_numpy(HostPages(40, layout.page_bytes).bytes), layout)
    kv.cells.fill_(float("nan"))
    return kv


def operations(kv: PagedKv | None = None) -> NativeOperations:
    assert LIBRARY is not None
    return NativeOperations(LIBRARY, kv or kv_of())


def quantised(kind: str, outs: int, ins: int) -> tuple[PackedMatrix, torch.Tensor]:
    """A random matrix and the float32 values that its packed form stands for."""
    matrix = torch.randn(outs, ins, generator=torch.Generator().manual_seed(outs + ins))
    if kind == "int8":
        packed = pack_int8(matrix)
        scales = matrix.abs().amax(1, keepdim=True) / 127
        return packed, (matrix / scales).round() * scales
    if kind in STORED:
        blocks, whole = stored_matrix(kind, matrix)
        return pack_blocks([blocks]), whole
    narrow = matrix.to(getattr(torch, kind))
    return pack_dense(narrow), narrow.float()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int8", *STORED])
@pytest.mark.parametrize(("outs", "ins"), [(16, 32), (50, 96), (33, 416)])
def test_product_of_every_kind(kind: str, outs: int, ins: int) -> None:
    packed, whole = quantised(kind, outs, ins)
    rows = torch.randn(50, ins)
    together = operations().project(rows, packed)
    torch.testing.assert_close(together, rows @ whole.T, atol=2e-4, rtol=1e-5)
    for rows_alone in ROWS:
        found = operations().project(rows[:rows_alone].contiguous(), packed)
        assert torch.equal(found, together[:rows_alone])
    onto = torch.randn(50, outs)
    expected = onto + together
    assert torch.equal(operations().project(rows, packed, onto), expected)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", *STORED])
def test_rows_are_not_rounded(kind: str) -> None:
    """Against float64, relative to the sum of magnitudes: bfloat16 rows would be 1e-3 off."""
    packed, whole = quantised(kind, 40, 416)
    rows = torch.randn(20, 416) * 10 ** torch.empty(20, 416).uniform_(-3, 3)
    exact = rows.double() @ whole.double().T
    size = rows.double().abs() @ whole.double().abs().T
    found = operations().project(rows, packed).double()
    assert ((found - exact).abs() / size).max() < 2e-6


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("ins", [1, 7, 40, 77])
def test_widths_that_fill_no_block(kind: str, ins: int) -> None:
    packed, whole = quantised(kind, 20, ins)
    rows = torch.randn(9, ins)
    found = operations().project(rows, packed)
    torch.testing.assert_close(found, rows @ whole.T, atol=1e-4, rtol=1e-5)
    assert torch.equal(operations().project(rows[:1].contiguous(), packed), found[:1])


@pytest.mark.parametrize("kind", STORED)
def test_stored_weights_are_the_same_bits_as_read_ones(kind: str) -> None:
    packed, whole = quantised(kind, 48, 64)
    tokens = torch.tensor([0, 47, 16, 5])
    assert torch.equal(operations().embed(tokens, packed), whole[tokens])


def test_elements() -> None:
    rows, weight = torch.randn(3, 90), torch.rand(90)
    found = operations().norm(rows, weight, 1e-5)
    expected = torch.nn.functional.rms_norm(rows, (90,), weight, 1e-5)
    torch.testing.assert_close(found, expected)
    both = torch.randn(40, 2 * 51) * 20
    expected = torch.nn.functional.silu(both[:, :51]) * both[:, 51:]
    torch.testing.assert_close(operations().silu_gate(both), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rotation_and_store(dtype: str) -> None:
    ours, theirs = kv_of(dtype), kv_of(dtype)
    items = [StepItem((1, 2, 3), 15, (PageId(3), PageId(9)), None)]
    heads = torch.randn(3, 6 + 2 + 2, 64)
    angle = torch.rand(3, 1, 32)
    turn = (angle.cos(), angle.sin())
    other = heads.clone()
    operations(ours).turn_and_store(1, heads, turn, ours.new_rows(items))
    TorchOperations(theirs).turn_and_store(1, other.to(theirs.dtype), turn, theirs.new_rows(items))
    torch.testing.assert_close(
        ours.cells.float(), theirs.cells.float(), atol=2e-2, rtol=1e-2, equal_nan=True
    )


def filled(kv: PagedKv, spans: Sequence[tuple[int, int]]) -> list[StepItem]:
    """Items over random keys and values up to each one's end, NaN everywhere else."""
    free, block = count(), kv.layout.block_tokens
    items = []
    for start, length in spans:
        pages = -(-(start + length) // block)
        table = tuple(PageId(next(free)) for _ in range(pages))
        for position in range(start + length):
            cell = kv.cells[table[position // block], :, :, :, position % block]
            cell.copy_(torch.randn(cell.shape))
        items.append(StepItem((1,) * length, start, table, None))
    return items


def attended(kv: PagedKv, items: list[StepItem], rules: AttentionRules, queries: torch.Tensor):  # type: ignore[no-untyped-def]
    assert LIBRARY is not None
    return NativeAttention(LIBRARY, kv, items, rules).attend(1, queries)


SPANS = [(37, 1), (0, 17), (15, 1), (16, 30), (90, 1), (0, 1)]
RULES = {
    "plain": AttentionRules(6, 0.125),
    "one head a group": AttentionRules(2, 0.125),
    "window": AttentionRules(6, 0.125, windows=(0, 11)),
    "capped": AttentionRules(6, 0.2, cap=3.0),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("head_dim", "block"), [(64, 16), (96, 32), (16, 16)])
def test_attention(rules: AttentionRules, head_dim: int, block: int) -> None:
    kv = kv_of(head_dim=head_dim, block=block)
    items = filled(kv, SPANS)
    queries = torch.randn(sum(length for _, length in SPANS), rules.heads, head_dim)
    expected = HostAttention(kv, items, rules, Workspace(kv.dtype)).attend(1, queries)
    found = attended(kv, items, rules, queries)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rules", [RULES["plain"], RULES["window"]], ids=["plain", "window"])
def test_chunks_and_company_change_no_bit(dtype: str, rules: AttentionRules) -> None:
    kv = kv_of(dtype)
    (long, other) = filled(kv, [(0, 75), (20, 9)])
    queries = torch.randn(84, 6, 64)
    whole = attended(kv, [long, other], rules, queries)
    for start, end in ((0, 1), (1, 20), (20, 74), (74, 75)):
        part = StepItem(long.tokens[start:end], start, long.page_table, None)
        assert torch.equal(attended(kv, [part], rules, queries[start:end]), whole[start:end])


def test_not_a_number_shows() -> None:
    kv = kv_of()
    items = filled(kv, [(20, 1)])
    kv.cells[items[0].page_table[0], 1, 0, 0, 3] = float("nan")
    found = attended(kv, items, RULES["plain"], torch.randn(1, 6, 64))
    assert torch.isnan(found[0, :3]).all()
    assert torch.isfinite(found[0, 3:]).all()


def test_shapes_that_are_left_to_torch() -> None:
    plain = AttentionRules(4, 1.0)
    assert fits(PageLayout(1, 2, 64, 16, "float32"), plain)
    assert not fits(PageLayout(1, 2, 40, 16, "float32"), plain)
    assert not fits(PageLayout(1, 2, 512, 16, "float32"), plain)
    assert not fits(PageLayout(1, 2, 64, 8, "float32"), plain)
