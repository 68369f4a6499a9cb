"""Recorded decode steps: which shapes there are, how a step is padded, and that a replay over
fixed tensors gives the logits of the step. Recording itself needs a GPU (`test_cuda.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.checkpoint import Checkpoint, open_checkpoint
from shared.engine.attention import StepAttention, plan_attention
from shared.engine.batch import Draw, StepItem
from shared.engine.building import build_engine
from shared.engine.device_attention import DeviceStaticAttention
from shared.engine.graph_plan import MOST_GRAPHS, Shape, graph_plan, padded
from shared.engine.graphs import DecodeGraphs, Replay, StaticAttention
from shared.engine.model import step_inputs
from shared.engine.runner import TorchEngine

from ..checkpoint.files import tiny_spec, write_folder
from .sequences import BLOCK, pages_for, prefill, scattered, table

PAGES = 64
GREEDY = Draw(0.0, 1.0, 0, 0)
PLAN = graph_plan(6, 512, BLOCK)


class Again:
    """A recorder that just runs the work again."""

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        work()
        return work


class HostStatic:
    """The CPU's attention, planned anew at each fill."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self._planned: StepAttention | None = None

    def fill(self, items: Sequence[StepItem]) -> None:
        one = self._engine
        self._planned = plan_attention(one._kv, items, one._rules, one._workspace)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        assert self._planned is not None
        return self._planned.attend(layer, queries)


def decoding(pages: int) -> StepItem:
    return StepItem((1,), pages * BLOCK - 1, table(*range(pages)), GREEDY)


def test_batches_are_fine_where_small_and_end_with_the_largest() -> None:
    assert graph_plan(48, 2_048, 16).items == (1, 2, 4, 8, 16, 24, 32, 40, 48)
    assert graph_plan(100, 2_048, 16).items[-3:] == (64, 96, 100)
    assert graph_plan(1_000, 2_048, 16).items[-1] == 256
    assert graph_plan(8, 8_192, 16).pages == (128, 512)
    assert graph_plan(8, 300, 16).pages == (19,)
    assert graph_plan(0, 8_192, 16).shapes() == ()
    assert graph_plan(8, 131_072, 16).pages == (128, 512, 2_048, 8_192)


def test_recording_begins_with_short_contexts_and_large_batches_and_is_bounded() -> None:
    plan = graph_plan(256, 131_072, 16)
    shapes = plan.shapes()
    assert shapes[0] == Shape(128, 256) and shapes[1].items < 256
    assert len(shapes) == len(set(shapes)) <= MOST_GRAPHS
    assert {shape.pages for shape in shapes[: len(plan.items)]} == {128}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_the_smallest_shape_that_holds_a_step(lengths: list[int]) -> None:
    items = [decoding(pages) for pages in lengths]
    shape = PLAN.shape_of(items)
    if len(items) > 6 or max(lengths) > 32:
        assert shape is None
        return
    assert shape is not None and shape.items in PLAN.items and shape.pages == 32
    smaller = [size for size in PLAN.items if size < shape.items]
    assert all(size < len(items) for size in smaller)
    filled = padded(items, shape)
    assert len(filled) == shape.items and filled[: len(items)] == items
    assert set(filled[len(items) :]) <= {items[-1]}, "padding writes what its last item writes"


def test_steps_with_prompts_or_without_draws_run_as_they_are() -> None:
    chunk = StepItem((1, 2), 0, table(0), GREEDY)
    silent = StepItem((1,), 0, table(0), None)
    assert PLAN.shape_of([decoding(1), chunk]) is None
    assert PLAN.shape_of([silent]) is None
    assert PLAN.shape_of([]) is None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(write_folder(tmp_path_factory.mktemp("hf"), tiny_spec())))


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "kernels"])
def test_a_replay_gives_the_logits_of_the_step(checkpoint: Checkpoint, on_device: bool) -> None:
    """`kernels`: the device's attention in the interpreter, over tables wider than any item."""
    if on_device and torch.cuda.is_available():
        pytest.skip("the interpreter is off where there is a GPU: test_cuda.py covers it there")
    engine = build_engine(checkpoint, "cpu", "float32", PAGES, BLOCK, "torch")
    assert isinstance(engine, TorchEngine)

    def attention(shape: Shape) -> StaticAttention:
        if on_device:
            return DeviceStaticAttention(engine._kv, engine._rules, shape)
        return HostStatic(engine)

    plan = graph_plan(4, 48, BLOCK)
    graphs = DecodeGraphs(engine._model, engine._kv, plan, Again(), attention)
    graphs.record_all()
    assert graphs.shapes == plan.shapes()
    places, items = scattered(PAGES, PAGES, 3), []
    for number, length in enumerate((40, 1, 17)):
        prompt = [(31 * index + 7 * number) % 512 for index in range(length)]
        own = places[4 * number : 4 * number + pages_for(length + 1)]
        first = prefill(engine, prompt, own)
        items.append(StepItem((first,), length, own, GREEDY))
    for count in (1, 2, 3):
        step = items[:count]
        found = graphs.logits(step)
        assert found is not None
        with torch.inference_mode():
            planned = plan_attention(engine._kv, step, engine._rules, engine._workspace)
            wanted = engine._model.forward(step_inputs(engine._kv, step), planned)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert graphs.logits([*items, *items]) is None


def test_the_cpu_has_none(checkpoint: Checkpoint) -> None:
    engine = build_engine(checkpoint, "cpu", "float32", PAGES, BLOCK, "torch")
    assert isinstance(engine, TorchEngine)
    assert DecodeGraphs.on_device(engine._model, engine._kv, engine._rules, PLAN) is None
