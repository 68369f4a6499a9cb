"""The one engine thread, seen from the event loop: calls go one at a time and never block it.

A call that was started always runs to its end, because its pages must not change hands before.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from shared.clock import Clock, SystemClock
from shared.costs import prefill_s
from shared.engine.batch import Engine, Spread, StepItem, StepResult
from shared.engine.profile import StepBudget, measure_budget, measure_costs
from shared.errors import EngineError, EngineLost
from shared.ids import PageId
from shared.wire.workers import CostModel

Result = TypeVar("Result")

_MAX_WAITING: Final = 256
_SLOWER: Final = 10
"""A step may take so many times longer than the longest one should."""


class Executor:
    """Owns the engine's thread. Used from one event loop; `close` is the end of it."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self.engine = engine
        self._clock = clock or SystemClock()
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="engine", initializer=_name_thread
        )
        self._counting = threading.Lock()
        self._waiting = 0
        self._progress_s: float | None = None

    @property
    def tick_age_s(self) -> float:
        """How long the engine has owed the end of a call, begun or not; 0 while idle."""
        progress_s = self._progress_s
        return 0.0 if progress_s is None else self._clock.now() - progress_s

    async def step(self, items: Sequence[StepItem]) -> StepResult:
        """Run one step. Raises EngineError; then no item advanced. When cancelled it waits for
        the step to end first, so the caller may release the pages afterwards."""
        return await self._call(functools.partial(self.engine.step, items))

    async def checksums(self, pages: Sequence[PageId], parts: int | None = None) -> tuple[int, ...]:
        """Of each page, as `Engine.checksums` has it, after the calls made before this one."""
        return await self._call(functools.partial(self.engine.checksums, pages, parts))

    async def watch(self, say: Callable[[str], None]) -> None:
        """Never returns. Says why and raises EngineLost once the engine can run no more, also while
        it is idle."""
        loop = asyncio.get_running_loop()
        loss: asyncio.Future[None] = loop.create_future()

        def told(error: EngineLost) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_fail, loss, error)

        if isinstance(self.engine, Spread):
            self.engine.on_lost(told)
        try:
            await loss
        except EngineLost as error:
            say(error.message)
            raise

    async def costs(self, block_tokens: int) -> CostModel:
        """Measure the engine; overwrites pages, so only before any page is in use."""
        return await self._call(functools.partial(measure_costs, self.engine, block_tokens))

    async def step_budget(
        self, block_tokens: int, sequences: int, most_tokens: int, target_s: float
    ) -> StepBudget:
        """Choose decode's token budget by running steps; overwrites pages like `costs`."""
        measure = functools.partial(
            measure_budget, self.engine, block_tokens, sequences, most_tokens, target_s
        )
        return await self._call(measure)

    def close(self) -> None:
        """Refuse new calls and let the running one end in its thread. Blocks only for as long as
        the other processes of an engine take to end."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if isinstance(self.engine, Spread):
            self.engine.close()

    async def _call(self, work: Callable[[], Result]) -> Result:
        if self._waiting >= _MAX_WAITING:
            raise EngineError(f"{_MAX_WAITING} calls already wait for the engine")
        try:
            future = self._thread.submit(_guarded, work)
        except RuntimeError as error:
            raise EngineError("the engine is closed") from error
        with self._counting:
            self._waiting += 1
            if self._progress_s is None:
                self._progress_s = self._clock.now()
        future.add_done_callback(self._ended)
        return await _to_the_end(asyncio.wrap_future(future))

    def _ended(self, _: Future[Result]) -> None:
        """Called in the engine's thread."""
        with self._counting:
            self._waiting -= 1
            self._progress_s = self._clock.now() if self._waiting else None


def stall_bound_s(cost: CostModel, step_tokens: int, context_tokens: int, least_s: float) -> float:
    """An engine call older than this hangs: `least_s`, or longer where steps are long."""
    return max(least_s, _SLOWER * prefill_s(cost, step_tokens, context_tokens))


def _name_thread() -> None:
    """So that `top -H` and debuggers show which of the process's threads is the engine's."""
    with suppress(OSError):
        Path("/proc/thread-self/comm").write_text("engine", "ascii")


def _guarded(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"engine step failed: {type(error).__name__}: {error}") from error


def _fail(future: asyncio.Future[None], error: EngineLost) -> None:
    if not future.done():
        future.set_exception(error)


async def _to_the_end(future: asyncio.Future[Result]) -> Result:
    """Await `future`; a cancellation is passed on only once the work is over."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    if future.cancelled():
        raise EngineError("the engine is closed")
    return future.result()
