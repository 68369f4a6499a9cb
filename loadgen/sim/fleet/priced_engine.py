"""The engine of a performance run: no bytes, only time. Every drawn token is the same one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from loadgen.sim.fleet.design import Design
from loadgen.sim.fleet.prices import Price
from loadgen.sim.worker import Worker
from loadgen.sim.works import ServedModel, Tokens
from shared.engine.batch import StepItem
from shared.errors import EngineError
from shared.ids import PageId
from shared.wire.workers import CostModel

DRAWN: Final = 1
"""Prompts never contain it."""
_VOCAB: Final = 1 << 62


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


class PricedWorks:
    """Engines of one design. A pipeline is as many workers as it has stages, which share them: each
    runs its own steps, and so many are under way at once."""

    def __init__(self, design: Design) -> None:
        self._design = design
        self._pipelines: dict[tuple[str, int], Pipeline] = {}
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
        self._worker = worker
        self._price = price
        self._stride = stride
        self._free_s = 0.0

    def step(self, items: Sequence[StepItem], done: Callable[[Tokens | None], None]) -> None:
        seconds, computed = self._price.step(items, self._stride)
        self.busy_s += seconds
        self.prompt_tokens += computed
        tokens = tuple([None if item.draw is None else DRAWN for item in items])
        heap = self._worker.scene.heap
        begin_s = max(heap.now_s, self._free_s)
        if self.pipeline is None:
            self._free_s = begin_s + seconds
        else:
            price = self._price
            hop_s = price.hop_s + price.hop_token_s * (computed or len(items))
            stage_s = seconds / price.stages
            self._free_s = self.pipeline.through(begin_s, stage_s, hop_s)
        heap.at(self._free_s, self._worker.guarded(lambda: done(tokens)))

    def sums(self, pages: Sequence[PageId], done: Callable[[tuple[int, ...]], None]) -> None:
        zeros = (0,) * len(pages)
        self._worker.soon(lambda: done(zeros))

    def check_bytes(self, pages: Sequence[tuple[PageId, int | None]]) -> None:
        """There are none."""
