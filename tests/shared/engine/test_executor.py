"""The engine thread from the loop's side: order, errors, cancellation, age, end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from shared.checkpoint import open_checkpoint
from shared.checkpoint.geometry import page_layout
from shared.clock import ManualClock
from shared.engine.batch import Draw, StepItem, StepResult
from shared.engine.executor import Executor, stall_bound_s
from shared.engine.hashchain import HashchainEngine
from shared.errors import EngineError
from shared.ids import PageId
from shared.wire.workers import CostModel

from .sequences import BLOCK, table

ITEM = StepItem((1, 2, 3), 0, table(0), Draw(0.0, 1.0, 0, 0))


class GatedEngine(HashchainEngine):
    """Holds every step until the test opens the gate."""

    def __init__(self) -> None:
        checkpoint = open_checkpoint("hashchain")
        super().__init__(checkpoint, page_layout(checkpoint, "float32", BLOCK), 16)
        self.entered, self.gate = threading.Event(), threading.Event()
        self.threads: set[str] = set()

    def step(self, items: Sequence[StepItem]) -> StepResult:
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        if not self.gate.wait(10):
            raise EngineError("the test never opened the gate")
        return super().step(items)


def _hung(gate: threading.Event, done: threading.Event) -> Callable[..., StepResult]:
    """A step that begins once the gate is open and ends when it is told to."""

    def step(items: Sequence[StepItem]) -> StepResult:
        assert gate.wait(10) and done.wait(10)
        return StepResult((None,), 0.0)

    return step


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture
def executor(engine: GatedEngine) -> Iterator[Executor]:
    built = Executor(engine)
    yield built
    engine.gate.set()
    built.close()


async def test_steps_and_checksums_in_order_on_one_thread(
    engine: GatedEngine, executor: Executor
) -> None:
    engine.gate.set()
    empty = await executor.checksums([PageId(0)])
    step, full = await asyncio.gather(executor.step([ITEM]), executor.checksums([PageId(0)]))
    assert step.tokens[0] is not None
    assert step.seconds > 0
    assert full != empty
    assert engine.threads == {"engine_0"}


async def test_the_loop_is_free_during_a_step_and_its_age_shows(engine: GatedEngine) -> None:
    clock = ManualClock()
    executor = Executor(engine, clock)
    assert executor.tick_age_s == 0.0
    step = asyncio.create_task(executor.step([ITEM]), name="step")
    assert await asyncio.to_thread(engine.entered.wait, 10)
    clock.advance(7.0)
    assert executor.tick_age_s == 7.0
    engine.gate.set()
    async with asyncio.timeout(10):
        await step
    assert executor.tick_age_s == 0.0
    executor.close()


async def test_the_age_counts_from_the_last_progress(engine: GatedEngine) -> None:
    """A thread that never begins a call is as stuck as one that never ends it."""
    clock = ManualClock()
    executor = Executor(engine, clock)
    first = asyncio.create_task(executor.step([ITEM]), name="first")
    assert await asyncio.to_thread(engine.entered.wait, 10)
    clock.advance(3.0)
    engine.step = _hung(engine.gate, done := threading.Event())  # type: ignore[method-assign]
    second = asyncio.create_task(executor.step([ITEM]), name="second")
    await asyncio.sleep(0)
    assert executor.tick_age_s == 3.0
    clock.advance(2.0)
    engine.gate.set()
    async with asyncio.timeout(10):
        await first
    assert executor.tick_age_s == 0.0
    clock.advance(4.0)
    assert executor.tick_age_s == 4.0
    done.set()
    async with asyncio.timeout(10):
        await second
    assert executor.tick_age_s == 0.0
    executor.close()


def test_a_call_hangs_later_where_steps_are_long() -> None:
    cost = CostModel(0.1, 0.01, 0.0, 0.1, 0.0)
    assert stall_bound_s(cost, 90, 8192, 30.0) == 30.0
    assert stall_bound_s(cost, 590, 8192, 30.0) == pytest.approx(60.0)


async def test_cancelled_step_ends_before_the_caller_hears_of_it(
    engine: GatedEngine, executor: Executor
) -> None:
    step = asyncio.create_task(executor.step([ITEM]), name="step")
    assert await asyncio.to_thread(engine.entered.wait, 10)
    for _ in range(2):
        step.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not step.done()
    engine.gate.set()
    async with asyncio.timeout(10):
        await asyncio.wait({step})
    assert step.cancelled()
    assert engine.checksums([PageId(0)]) != engine.checksums([PageId(1)])


async def test_engine_errors_arrive_and_the_thread_lives_on(
    engine: GatedEngine, executor: Executor
) -> None:
    engine.gate.set()
    with pytest.raises(EngineError, match="no tokens"):
        await executor.step([StepItem((), 0, (), None)])
    with pytest.raises(EngineError, match="AttributeError"):
        await executor.step([None])  # type: ignore[list-item]
    assert (await executor.step([ITEM])).tokens[0] is not None


async def test_closed_executor_refuses(engine: GatedEngine, executor: Executor) -> None:
    running = asyncio.create_task(executor.step([ITEM]), name="running")
    assert await asyncio.to_thread(engine.entered.wait, 10)
    waiting = asyncio.create_task(executor.step([ITEM]), name="waiting")
    await asyncio.sleep(0)
    executor.close()
    engine.gate.set()
    async with asyncio.timeout(10):
        assert (await running).tokens[0] is not None
        with pytest.raises(EngineError, match="closed"):
            await waiting
    with pytest.raises(EngineError, match="closed"):
        await executor.checksums([PageId(0)])


async def test_costs_are_measured(engine: GatedEngine, executor: Executor) -> None:
    engine.gate.set()
    cost = await executor.costs(BLOCK)
    assert cost.decode_step_s > 0
    assert min(cost.step_s, cost.token_s, cost.pair_s, cost.decode_sequence_s) >= 0
