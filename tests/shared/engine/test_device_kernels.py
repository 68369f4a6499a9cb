"""The engine as a GPU runs it, our kernels behind its seams, in Triton's interpreter: the logits
and tokens of the plain path. On a GPU itself `test_cuda.py` says the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernels.paged_attention import reference
from shared.checkpoint import Checkpoint, open_checkpoint
from shared.checkpoint.geometry import page_layout
from shared.engine.attention_rules import AttentionRules
from shared.engine.batch import Draw, StepItem
from shared.engine.device_attention import DeviceAttention, DeviceStaticAttention
from shared.engine.device_kernels import DeviceKernels
from shared.engine.graph_plan import Shape, graph_plan
from shared.engine.graphs import DecodeGraphs
from shared.engine.paged_kv import PagedKv
from shared.engine.runner import TorchEngine
from shared.engine.sampler import sample
from shared.engine.tuning import HostSetup
from shared.errors import EngineError
from shared.kv.layout import PageLayout

from ..checkpoint.tiny_families import write_safetensors
from .sequences import BLOCK, decode, pages_for, prefill, scattered
from .tape import Tape
from .test_families import FAMILIES

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter is off where there is a GPU"
)
PAGES = 64
GREEDY = Draw(0.0, 1.0, 0, 0)
LENGTHS = (40, 1, 17)
"""What a family brings besides: biases and windows, norms of queries and keys, norms after each
half with the other gate, capped scores."""
NAMES = ("llama", "qwen2, window in upper layers", "qwen3", "gemma2", "gemma3")


def loaded(name: str, folder: Path) -> Checkpoint:
    return open_checkpoint(str(write_safetensors(folder, FAMILIES[name])))


def engine(checkpoint: Checkpoint, dtype: str = "float32", kernels: bool = True) -> TorchEngine:
    setup = HostSetup(threads=1, weights="stored", kernels=kernels)
    layout = page_layout(checkpoint, dtype, BLOCK)
    return TorchEngine.load(checkpoint, "cpu", layout, PAGES, setup)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return loaded("llama", tmp_path_factory.mktemp("model") / "tiny")


def prompt(length: int, number: int) -> list[int]:
    return [(31 * index + 7 * number) % 512 for index in range(length)]


def filled(checkpoint: Checkpoint, dtype: str = "float32") -> tuple[TorchEngine, list[StepItem]]:
    """A plain engine that has computed what comes before a mixed step: three sequences that decode
    and a chunk of a prompt."""
    one = engine(checkpoint, dtype, kernels=False)
    places, items = scattered(PAGES, PAGES, 3), []
    for number, length in enumerate(LENGTHS):
        own = places[4 * number : 4 * number + pages_for(length + 1)]
        prefill(one, prompt(length, number), own)
        items.append(StepItem((7 + number,), length, own, GREEDY))
    own, text = places[20:30], prompt(59, 9)
    one.step([StepItem(tuple(text[:48]), 0, own, None)])
    return one, [*items, StepItem(tuple(text[48:]), 48, own, GREEDY)]


def beside(plain: TorchEngine, checkpoint: Checkpoint) -> TorchEngine:
    """An engine on our kernels with the same bytes in its pages."""
    ours = engine(checkpoint, plain._kv.layout.dtype)
    ours._kv.cells.copy_(plain._kv.cells)
    return ours


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_pages_of_a_mixed_step_are_those_of_the_plain_path(
    name: str, tmp_path: Path
) -> None:
    checkpoint = loaded(name, tmp_path / "tiny")
    plain, items = filled(checkpoint)
    ours = beside(plain, checkpoint)
    wanted, found = plain.logits(items), ours.logits(items)
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(ours._kv.cells, plain._kv.cells, rtol=2e-4, atol=2e-4)
    assert found.argmax(-1).tolist() == wanted.argmax(-1).tolist()


def test_half_precision_stays_near(checkpoint: Checkpoint) -> None:
    plain, items = filled(checkpoint, "bfloat16")
    wanted, found = plain.logits(items), beside(plain, checkpoint).logits(items)
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_greedy_and_free_draws_are_those_of_the_plain_path(checkpoint: Checkpoint) -> None:
    plain, ours = engine(checkpoint, kernels=False), engine(checkpoint)
    pages, text = scattered(PAGES, 4, 4), prompt(21, 1)

    def run(one: TorchEngine) -> list[int]:
        return decode(one, len(text), prefill(one, text, pages), pages, 8)

    assert run(ours) == run(plain)
    free = [StepItem((5,), 28, pages, Draw(0.8, 1.0, seed, 60)) for seed in range(6)]
    assert ours.step(free).tokens == plain.step(free).tokens


def test_a_fused_step_gives_the_same_bits(checkpoint: Checkpoint) -> None:
    plain, items = filled(checkpoint)
    one = beside(plain, checkpoint)
    serial = one.logits(items)
    one._kernels = DeviceKernels(one._kv, one._rules, "always")
    assert torch.equal(one.logits(items), serial)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_recorded_step_is_replayed_without_the_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what a CUDA graph could record runs in a step, and nothing of a step stays behind in a
    recording: other sequences, pages and lengths, within a window or beyond it, give their own
    logits."""
    checkpoint = loaded(name, tmp_path / "tiny")
    plain, items = filled(checkpoint)
    one, tape = engine(checkpoint), Tape(monkeypatch)
    plan = graph_plan(2, 48, BLOCK)
    graphs = DecodeGraphs(
        one._model, one._kv, plan, tape, lambda at: DeviceStaticAttention(one._kv, one._rules, at)
    )
    graphs.record_all()
    assert graphs.shapes == plan.shapes()
    if name == "llama":
        layer = ["rms_rows", "rope_write_rows", "decode_split", "decode_join", "rms_rows"]
        layer += ["silu_mul_rows"]
        assert tape.launches == [*layer, *layer, "rms_rows"], "of the smallest shape"
    one._kv.cells.copy_(plain._kv.cells)
    for step in (items[:1], items[1:3], items[:2]):
        found = graphs.logits(step)
        assert found is not None
        torch.testing.assert_close(found, plain.logits(step), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("lengths", [(5, 36, 37), (38, 600, 700)], ids=str)
def test_fixed_tables_give_the_bits_of_planned_ones(lengths: tuple[int, ...]) -> None:
    """In layers of each window, on both sides of it, over one split or several; and the right
    ones."""
    layout = PageLayout(layers=3, kv_heads=1, head_dim=16, block_tokens=BLOCK, dtype="float32")
    memory = torch.zeros((96, layout.page_bytes), dtype=torch.uint8)
    kv, chance = PagedKv(memory, layout), torch.Generator().manual_seed(3)
    kv.cells.copy_(torch.randn(kv.cells.shape, generator=chance))
    rules = AttentionRules(heads=2, scale=0.3, cap=2.0, windows=(37, 0, 600))
    fixed = DeviceStaticAttention(kv, rules, Shape(pages=96, items=3))
    items = [
        StepItem((1,), length - 1, scattered(96, pages_for(length), length), GREEDY)
        for length in lengths
    ]
    fixed.fill([items[0]] * 3)
    fixed.fill(items)
    planned, queries = DeviceAttention(kv, items, rules), torch.randn(3, 2, 16, generator=chance)
    for layer, window in enumerate(rules.windows):
        found = fixed.attend(layer, queries)
        assert torch.equal(found, planned.attend(layer, queries))
        for row, item in enumerate(items):
            pages, seen = torch.tensor(item.page_table), (item.start, 0.3, window or None, 2.0)
            query = queries[row : row + 1].double()
            wanted = reference.attend(query, kv.cells[:, layer], pages, *seen)[0].float()
            torch.testing.assert_close(found[row], wanted, rtol=1e-5, atol=1e-5)


def draws(**fields: float) -> list[Draw]:
    return [Draw(0.9, **({"top_p": 1.0} | fields), seed=seed, position=3) for seed in range(12)]  # type: ignore[arg-type]


def logits_of(rows: int) -> torch.Tensor:
    return 3 * torch.randn(rows, 700, generator=torch.Generator().manual_seed(1))


def sampled(checkpoint: Checkpoint, logits: torch.Tensor, wanted: Sequence[Draw]) -> list[int]:
    kernels = engine(checkpoint)._kernels
    assert kernels is not None
    return kernels.sample(logits, wanted)


def test_narrowed_draws_stay_within_what_the_rules_leave(checkpoint: Checkpoint) -> None:
    logits = logits_of(1).repeat(12, 1)
    ranks = logits[0].argsort(descending=True).tolist()
    weights = (logits[0] / 0.9).softmax(-1).sort(descending=True).values
    nucleus = int((weights.cumsum(-1) < 0.6).sum()) + 1
    likely = int((weights >= 0.2 * weights[0]).sum())
    for rules, most in (({"top_k": 3}, 3), ({"top_p": 0.6}, nucleus), ({"min_p": 0.2}, likely)):
        chosen = sampled(checkpoint, logits, draws(**rules))
        assert len(set(chosen)) > 1 and max(map(ranks.index, chosen)) < most


def test_penalties_and_bans_come_before_the_draw(checkpoint: Checkpoint) -> None:
    logits = logits_of(3)
    best = logits.argmax(-1).tolist()
    wanted = [Draw(0.0, 1.0, 0, 0, banned=(token,)) for token in best]
    found = sampled(checkpoint, logits, wanted)
    assert found == sample(logits, wanted)
    assert all(one != other for one, other in zip(found, best, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(checkpoint: Checkpoint, value: float) -> None:
    logits = logits_of(2)
    logits[1, 5] = value
    with pytest.raises(EngineError, match="finite"):
        sampled(checkpoint, logits, [GREEDY, GREEDY])
