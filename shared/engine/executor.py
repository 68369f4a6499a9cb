"""The one engine thread, seen from the event loop: calls go one at a time and never block it.

A call that was started always runs to its end, because its pages must not change hands before.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from shared.clock import Clock, SystemClock
from shared.engine.batch import Engine, StepItem, StepResult
from shared.engine.profile import measure_costs
from shared.errors import EngineError
from shared.ids import PageId
from shared.wire.workers import CostModel

Result = TypeVar("Result")

_MAX_WAITING: Final = 256


class Executor:
    """Owns the engine's thread. Used from one event loop; `close` is the end of it."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self.engine = engine
        self._clock = clock or SystemClock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._waiting = 0
        self._started_s: float | None = None

    @property
    def tick_age_s(self) -> float:
        """How long the engine call in progress has been running; 0 while idle."""
        started_s = self._started_s
        return 0.0 if started_s is None else self._clock.now() - started_s

    async def step(self, items: Sequence[StepItem]) -> StepResult:
        """Run one step. Raises EngineError; then no item advanced. When cancelled it waits for
        the step to end first, so the caller may release the pages afterwards."""
        return await self._call(functools.partial(self.engine.step, items))

    async def checksums(self, pages: Sequence[PageId]) -> tuple[int, ...]:
        """xxh3-64 of each page, after the calls made before this one."""
        return await self._call(functools.partial(self.engine.checksums, pages))

    async def costs(self, block_tokens: int) -> CostModel:
        """Measure the engine; overwrites pages, so only before any page is in use."""
        return await self._call(functools.partial(measure_costs, self.engine, block_tokens))

    def close(self) -> None:
        """Refuse new calls and let the running one end in its thread. Does not block."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _call(self, work: Callable[[], Result]) -> Result:
        if self._waiting >= _MAX_WAITING:
            raise EngineError(f"{_MAX_WAITING} calls already wait for the engine")
        self._waiting += 1
        try:
            future = self._thread.submit(self._timed, work)
        except RuntimeError as error:
            self._waiting -= 1
            raise EngineError("the engine is closed") from error
        future.add_done_callback(self._ended)
        return await _to_the_end(asyncio.wrap_future(future))

    def _timed(self, work: Callable[[], Result]) -> Result:
        self._started_s = self._clock.now()
        try:
            return work()
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"engine step failed: {type(error).__name__}: {error}") from error
        finally:
            self._started_s = None

    def _ended(self, _: Future[Result]) -> None:
        self._waiting -= 1


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
