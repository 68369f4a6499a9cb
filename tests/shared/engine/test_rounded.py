"""The bfloat16 setting in tiles or vectors: what is rounded, and that company changes no bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise

import pytest
import torch

from shared.checkpoint import Checkpoint, open_checkpoint
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import Draw, StepItem
from shared.engine.building import EngineOptions, build_engine
from shared.engine.host_pages import HostPages
from shared.engine.native.attention import NativeAttention
from shared.engine.native.library import native
from shared.engine.native.operations import NativeOperations
from shared.engine.native.packing import PackedMatrix, pack_blocks, pack_dense, pack_int8
from shared.engine.paged_kv import PagedKv
from shared.engine.runner import TorchEngine
from shared.ids import PageId
from shared.kv.layout import PageLayout

from ..checkpoint.files import tiny_spec, write_folder
from . import processors
from .sequences import BLOCK, pages_for, scattered
from .stored import stored_matrix

LIBRARY = native().functions
ROWS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49, 300)
KINDS = ("bfloat16", "int8", "q8_0", "q4_0", "q4_1")
GREEDY = Draw(0.0, 1.0, 0, 0)


@pytest.fixture(autouse=True, params=processors.names("vectors"))
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles and, where this processor has those, also in vectors."""
    processors.use(request.param, __name__, monkeypatch, rounded=True)


def kv_of(head_dim: int = 64, block: int = 16) -> PagedKv:
    layout = PageLayout(2, 2, head_dim, block, "bfloat16")
    kv = PagedKv(torch.from_numpy(HostPages(60, layout.page_bytes).bytes), layout)
    kv.cells.fill_(float("nan"))
    return kv


def operations() -> NativeOperations:
    assert LIBRARY is not None
    return NativeOperations(LIBRARY, kv_of())


def matrix_of(kind: str, outs: int, ins: int) -> tuple[PackedMatrix, torch.Tensor]:
    """A random matrix for rounded products, and the weights that they take."""
    matrix = torch.randn(outs, ins, generator=torch.Generator().manual_seed(outs + ins))
    if kind == "bfloat16":
        return pack_dense(matrix, rounded=True), matrix.bfloat16()
    if kind == "int8":
        scales = matrix.abs().amax(1, keepdim=True) / 127
        return pack_int8(matrix, rounded=True), ((matrix / scales).round() * scales).bfloat16()
    blocks, whole = stored_matrix(kind, matrix)
    return pack_blocks([blocks], rounded=True), whole.bfloat16()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outs", "ins"), [(16, 32), (50, 96), (33, 416), (120, 640)])
def test_product_of_every_kind(kind: str, outs: int, ins: int) -> None:
    packed, weights = matrix_of(kind, outs, ins)
    rows = torch.randn(ROWS[-1], ins)
    exact = rows.bfloat16().double() @ weights.double().T
    size = rows.bfloat16().double().abs() @ weights.double().abs().T
    together = operations().project(rows, packed)
    assert ((together - exact).abs() / size).max() < 2e-6
    for alone in ROWS[:-1]:
        assert torch.equal(
            operations().project(rows[:alone].contiguous(), packed), together[:alone]
        )
    single = operations().project(rows[77:78].contiguous(), packed)
    assert torch.equal(single, together[77:78])


@pytest.mark.parametrize("kind", KINDS)
def test_product_onto_rows_begins_with_them(kind: str) -> None:
    packed, weights = matrix_of(kind, 50, 96)
    rows, onto = torch.randn(40, 96), torch.randn(40, 50)
    exact = onto.double() + rows.bfloat16().double() @ weights.double().T
    found = operations().project(rows, packed, onto.clone())
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=1e-5)
    one = operations().project(rows[:1].contiguous(), packed, onto[:1].clone())
    assert torch.equal(one, found[:1])


@pytest.mark.parametrize("ins", [1, 7, 40, 77])
def test_widths_that_fill_no_block(ins: int) -> None:
    packed, weights = matrix_of("bfloat16", 20, ins)
    rows = torch.randn(9, ins)
    exact = rows.bfloat16().double() @ weights.double().T
    found = operations().project(rows, packed)
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_table_are_rounded_weights(kind: str) -> None:
    packed, weights = matrix_of(kind, 48, 64)
    tokens = torch.tensor([0, 47, 16, 5])
    assert torch.equal(operations().embed(tokens, packed), weights[tokens].float())


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1"])
def test_dense_weights_give_the_bits_of_stored_ones(kind: str) -> None:
    packed, weights = matrix_of(kind, 48, 416)
    rows = torch.randn(20, 416)
    dense = pack_dense(weights, rounded=True)
    assert torch.equal(operations().project(rows, packed), operations().project(rows, dense))


def filled(kv: PagedKv, spans: Sequence[tuple[int, int]]) -> list[StepItem]:
    """Items over random keys and values up to each one's end, NaN everywhere else."""
    free, block = count(), kv.layout.block_tokens
    items = []
    for start, length in spans:
        table = tuple(PageId(next(free)) for _ in range(-(-(start + length) // block)))
        for position in range(start + length):
            cell = kv.cells[table[position // block], :, :, :, position % block]
            cell.copy_(torch.randn(cell.shape))
        items.append(StepItem((1,) * length, start, table, None))
    return items


def attended(
    kv: PagedKv, items: list[StepItem], rules: AttentionRules, queries: torch.Tensor
) -> torch.Tensor:
    assert LIBRARY is not None
    return NativeAttention(LIBRARY, kv, items, rules).attend(1, queries)


def reference(
    kv: PagedKv, item: StepItem, rules: AttentionRules, queries: torch.Tensor
) -> torch.Tensor:
    """softmax(scale q k) v in float64 over the rounded queries, position by position."""
    end, block = item.start + len(item.tokens), kv.layout.block_tokens
    places = [(item.page_table[position // block], position % block) for position in range(end)]
    keys, values = (
        torch.stack([kv.cells[page, 1, which, :, at] for page, at in places]).double()
        for which in (0, 1)
    )
    group, window = rules.heads // kv.layout.kv_heads, rules.window(1)
    found = torch.empty(queries.shape, dtype=torch.float64)
    for row, (token, head) in enumerate(
        (token, head) for token in range(len(item.tokens)) for head in range(rules.heads)
    ):
        last = item.start + token + 1
        seen = slice(max(0, last - window) if window else 0, last)
        query = queries[token, head].bfloat16().double()
        scores = keys[seen, head // group] @ query * rules.scale
        if rules.cap:
            scores = rules.cap * torch.tanh(scores / rules.cap)
        found[row // rules.heads, head] = scores.softmax(0) @ values[seen, head // group]
    return found


SPANS = [(37, 1), (0, 17), (15, 1), (16, 30), (90, 1), (0, 1), (63, 2), (60, 70)]
RULES = {
    "plain": AttentionRules(6, 0.125),
    "one head a group": AttentionRules(2, 0.125),
    "window": AttentionRules(6, 0.125, windows=(0, 11)),
    "capped": AttentionRules(6, 0.2, cap=3.0),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("head_dim", "block"), [(64, 16), (96, 32), (128, 16), (32, 16)])
def test_attention(rules: AttentionRules, head_dim: int, block: int) -> None:
    kv = kv_of(head_dim, block)
    items = filled(kv, SPANS)
    queries = torch.randn(sum(length for _, length in SPANS), rules.heads, head_dim)
    found, row = attended(kv, items, rules, queries).double(), 0
    for item in items:
        end = row + len(item.tokens)
        expected = reference(kv, item, rules, queries[row:end])
        torch.testing.assert_close(found[row:end], expected, atol=2e-2, rtol=1e-2)
        row = end


@pytest.mark.parametrize("rules", [RULES["plain"], RULES["window"]], ids=["plain", "window"])
def test_chunks_and_company_change_no_bit(rules: AttentionRules) -> None:
    kv = kv_of()
    (long, other) = filled(kv, [(0, 175), (20, 9)])
    queries = torch.randn(184, 6, 64)
    whole = attended(kv, [long, other], rules, queries)
    for start, end in ((0, 1), (1, 20), (20, 74), (74, 75), (75, 175)):
        part = StepItem(long.tokens[start:end], start, long.page_table, None)
        assert torch.equal(attended(kv, [part], rules, queries[start:end]), whole[start:end])


def test_not_a_number_shows() -> None:
    kv = kv_of()
    items = filled(kv, [(20, 1)])
    kv.cells[items[0].page_table[0], 1, 0, 0, 3] = float("nan")
    found = attended(kv, items, RULES["plain"], torch.randn(1, 6, 64))
    assert torch.isnan(found[0, :3]).all()
    assert torch.isfinite(found[0, 3:]).all()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    spec = tiny_spec(layers=3, context=1024, hidden=128, heads=2, kv_heads=1, head_dim=64, ffn=208)
    return open_checkpoint(str(write_folder(tmp_path_factory.mktemp("hf"), spec)))


def engine(checkpoint: Checkpoint, threads: int = 1) -> TorchEngine:
    options = EngineOptions(threads=threads)
    one = build_engine(checkpoint, "cpu", "bfloat16", 80, BLOCK, "torch", options)
    assert isinstance(one, TorchEngine)
    plain = one._model._plain
    assert plain is not None and plain._rounded
    return one


def test_steps_of_any_shape_give_the_same_bits(checkpoint: Checkpoint) -> None:
    """Whole, in chunks above and below where threads change how they share, and beside others."""
    one = engine(checkpoint, threads=2)
    prompt = tuple((37 * index + 5) % 512 for index in range(600))
    pages = scattered(80, pages_for(600), 3)
    other = next(PageId(page) for page in range(80) if page not in pages)
    whole = one.logits([StepItem(prompt, 0, pages, GREEDY)])
    for cuts in ((0, 300, 600), (0, 1, 18, 51, 290, 599, 600)):
        for start, end in pairwise(cuts):
            item = StepItem(prompt[start:end], start, pages, GREEDY)
            mate = StepItem((9, 8, 7), 0, (other,), GREEDY)
            found = one.logits([mate, item])
        assert torch.equal(found[1:], whole)


def test_close_to_float32(checkpoint: Checkpoint) -> None:
    prompt = tuple((37 * index + 5) % 512 for index in range(70))
    pages = scattered(80, pages_for(70), 3)
    exact = build_engine(checkpoint, "cpu", "float32", 80, BLOCK, "torch")
    assert isinstance(exact, TorchEngine)
    item = StepItem(prompt, 0, pages, GREEDY)
    expected = exact.logits([item]).log_softmax(-1)
    found = engine(checkpoint).logits([item]).log_softmax(-1)
    assert ((expected.exp() * (expected - found)).sum()).item() < 1e-2


def test_settings_do_not_share_pages(checkpoint: Checkpoint) -> None:
    exact = build_engine(checkpoint, "cpu", "float32", 80, BLOCK, "torch")
    assert exact.layout_digest != engine(checkpoint).layout_digest
