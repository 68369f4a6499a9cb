"""The engine of a performance run: no bytes, only time. Every drawn token is the same one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadgen.sim.clock import EventHeap
from loadgen.sim.fleet.design import Design
from loadgen.sim.fleet.prices import Price, Work
from loadgen.sim.worker import Worker
from loadgen.sim.works import ServedModel, Tokens
from shared.engine.batch import StepItem
from shared.errors import EngineError
from shared.ids import PageId
from shared.runtime.measured import MOST
from shared.wire.workers import CostModel, StepSample

DRAWN: Final = 1
"""Prompts never contain it."""
_VOCAB: Final = 1 << 62
_STILL_S: Final = 1e-3
"""Between two steps of an engine that has work there is no pause."""
_OVER_S: Final = 1e-9
"""Nothing is left of a step but what floating point makes of it."""


class BlankMemory:
    """Pages without bytes: nothing may look into them."""

    def __init__(self, pages: int, page_bytes: int) -> None:
        self.pages = pages
        self.page_bytes = page_bytes

    def run(self, first: PageId, count: int) -> Any:
        raise EngineError("a priced page has no bytes")


class Pipeline:
    """Stages that each run one step at a time, in the order in which steps come to them."""

    def __init__(self, stages: int) -> None:
        self._free_s = [0.0] * stages

    def through(self, begin_s: float, stage_s: float, hop_s: float) -> float:
        """When a step has left the last stage. `stage_s` in each, `hop_s` between two."""
        at_s = begin_s - hop_s
        for stage, free_s in enumerate(self._free_s):
            at_s = max(at_s + hop_s, free_s) + stage_s
            self._free_s[stage] = at_s
        return at_s


@dataclass(slots=True)
class _Running:
    """Work on a shared host."""

    left_s: float
    """That it would still take alone."""
    weight: float
    """By how much it slows others down."""
    ended: Callable[[], None]


class SharedHost:
    """Workers that share the cores of one host: beside another step each takes `beside` times as
    long, beside a copy `copy_beside` times; each further one adds as much as the second."""

    def __init__(self, beside: float, copy_beside: float = 1.0) -> None:
        self._step_weight, self._copy_weight = beside - 1.0, copy_beside - 1.0
        self._running: list[_Running] = []
        self._since_s = 0.0
        self._plan = 0

    def step(self, heap: EventHeap, alone_s: float, ended: Callable[[], None]) -> None:
        """A step begins now."""
        self._begin(heap, _Running(alone_s, self._step_weight, ended))

    def copy(self, heap: EventHeap, alone_s: float, ended: Callable[[], None]) -> None:
        """A pool node begins to copy."""
        self._begin(heap, _Running(alone_s, self._copy_weight, ended))

    def _begin(self, heap: EventHeap, work: _Running) -> None:
        self._pass(heap.now_s)
        self._running.append(work)
        self._wait(heap)

    def _slower(self, work: _Running) -> float:
        return 1.0 + sum(other.weight for other in self._running if other is not work)

    def _pass(self, now_s: float) -> None:
        gone_s, self._since_s = now_s - self._since_s, now_s
        for work in self._running:
            work.left_s -= gone_s / self._slower(work)

    def _wait(self, heap: EventHeap) -> None:
        """For the first to end, if nothing else begins before."""
        self._plan += 1
        plan = self._plan
        if self._running:
            rest_s = min(max(0.0, work.left_s) * self._slower(work) for work in self._running)
            heap.after(rest_s, lambda: self._reached(heap, plan))

    def _reached(self, heap: EventHeap, plan: int) -> None:
        if plan != self._plan:
            return
        self._pass(heap.now_s)
        over = [work for work in self._running if work.left_s <= _OVER_S]
        self._running = [work for work in self._running if work.left_s > _OVER_S]
        self._wait(heap)
        for work in over:
            work.ended()


class PricedWorks:
    """Engines of one design. A pipeline is as many workers as it has stages, which share them: each
    runs its own steps, and so many are under way at once."""

    def __init__(self, design: Design, host: SharedHost | None = None) -> None:
        self._design = design
        self._pipelines: dict[tuple[str, int], Pipeline] = {}
        self._host = host
        self.model = ServedModel(
            digest="priced",
            tokenizer_digest="priced",
            layout_digest="priced",
            dtype="bfloat16",
            block_tokens=design.block_tokens,
            page_bytes=design.block_tokens * design.prefill.kv_token_bytes,
            context_tokens=design.context_tokens,
            vocab_size=_VOCAB,
        )

    def price(self, name: str) -> Price:
        return self._design.prefill if name.startswith("prefill") else self._design.decode

    def cost(self, name: str) -> CostModel:
        return self.price(name).reported(self._design.belief)

    def room(self, worker: Worker, pages: int) -> PricedEngine:
        price, memory = self.price(worker.name), BlankMemory(pages, self.model.page_bytes)
        engine = PricedEngine(worker, price, memory, self._design.stride)
        engine.host = self._host
        if price.stages > 1:
            role, _, number = worker.name.rpartition("-")
            group = (role, int(number) // price.stages)
            engine.pipeline = self._pipelines.setdefault(group, Pipeline(price.stages))
        return engine


class PricedEngine:
    """One call after the other; checksums are free and all zero."""

    def __init__(self, worker: Worker, price: Price, memory: BlankMemory, stride: int = 1) -> None:
        self.memory = memory
        self.busy_s = 0.0
        self.prompt_tokens = 0
        """Computed, not cached."""
        self.pipeline: Pipeline | None = None
        self.host: SharedHost | None = None
        self._done: deque[Work] = deque(maxlen=MOST)
        self._worker = worker
        self._price = price
        self._stride = stride
        self._free_s = 0.0
        self._owed_s = 0.0

    def step(self, items: Sequence[StepItem], done: Callable[[Tokens | None], None]) -> None:
        work = self._price.step(items, self._stride)
        computed = work.new
        seconds = work.seconds + self._due(work)
        self.busy_s += seconds
        self.prompt_tokens += computed
        self._done.append(work)
        tokens = tuple([None if item.draw is None else DRAWN for item in items])
        heap = self._worker.scene.heap
        if self.host is not None:
            self.host.step(heap, seconds, self._worker.guarded(lambda: done(tokens)))
            return
        begin_s = max(heap.now_s, self._free_s)
        if self.pipeline is None:
            self._free_s = begin_s + seconds
        else:
            price = self._price
            hop_s = price.hop_s + price.hop_token_s * (computed or len(items))
            stage_s = seconds / price.stages
            self._free_s = self.pipeline.through(begin_s, stage_s, hop_s)
        heap.at(self._free_s, self._worker.guarded(lambda: done(tokens)))

    def _due(self, work: Work) -> float:
        """What steps before owe, where this one has no prompts. Who stood still owes nothing."""
        if self._worker.scene.heap.now_s > self._free_s + _STILL_S:
            self._owed_s = 0.0
        if work.new:
            self._owed_s += work.owed_s
            return 0.0
        due_s, self._owed_s = self._owed_s, 0.0
        return due_s

    def sums(self, pages: Sequence[PageId], done: Callable[[tuple[int, ...]], None]) -> None:
        zeros = (0,) * len(pages)
        self._worker.soon(lambda: done(zeros))

    def measured(self) -> tuple[StepSample, ...]:
        """The newest steps, once."""
        found = tuple([work.sample(self._stride) for work in self._done])
        self._done.clear()
        return found

    def check_bytes(self, pages: Sequence[tuple[PageId, int | None]]) -> None:
        """There are none."""
