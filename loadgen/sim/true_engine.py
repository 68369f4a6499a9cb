"""The engine of a fault run: the real hashchain engine on real bytes, its time charged on the
virtual clock, every page that it touches shown to the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from loadgen.sim import costs
from loadgen.sim.oracle import BLOCK_TOKENS, LAYOUT, build_engine, checkpoint
from loadgen.sim.worker import Worker
from loadgen.sim.works import ServedModel, Tokens
from shared.engine.batch import StepItem
from shared.errors import EngineError
from shared.ids import PageId
from shared.wire.workers import CostModel, StepSample

_INITIAL_DUST: Final = 0xA5
"""What a page holds before anyone wrote it."""


class TrueWorks:
    """Every worker has the same small model."""

    def __init__(self) -> None:
        known, engine = checkpoint(), build_engine(1)
        self.model = ServedModel(
            digest=known.digest,
            tokenizer_digest=known.tokenizer_digest,
            layout_digest=LAYOUT.digest,
            dtype=LAYOUT.dtype,
            block_tokens=BLOCK_TOKENS,
            page_bytes=LAYOUT.page_bytes,
            context_tokens=engine.context_tokens,
            vocab_size=engine.vocab_size,
        )

    def cost(self, name: str) -> CostModel:
        return costs.MODEL

    def room(self, worker: Worker, pages: int) -> TrueEngine:
        return TrueEngine(worker, pages)


class TrueEngine:
    """Runs inline; its bytes are read and written at the beginning or at the end of the time that
    a call takes, as chance has it."""

    def __init__(self, worker: Worker, pages: int) -> None:
        self._worker = worker
        self._engine = build_engine(pages)
        self.memory = self._engine.memory
        self.memory.bytes.fill(_INITIAL_DUST)
        self._free_s = 0.0

    def step(self, items: Sequence[StepItem], done: Callable[[Tokens | None], None]) -> None:
        worker = self._worker
        failed = worker.scene.weather.hit("engine_error", worker.name) is not None

        def run() -> Tokens | None:
            if failed:
                return None
            self._show(items)
            try:
                return self._engine.step(items).tokens
            except EngineError:
                return None

        self._take(costs.step_s(items, worker.chance), run, done)

    def sums(self, pages: Sequence[PageId], done: Callable[[tuple[int, ...]], None]) -> None:
        seconds = costs.sum_s(len(pages), self._worker.chance)
        self._take(seconds, lambda: self._engine.checksums(pages), done)

    def measured(self) -> tuple[StepSample, ...]:
        """None: what a step takes here is drawn, not worked for."""
        return ()

    def check_bytes(self, pages: Sequence[tuple[PageId, int | None]]) -> None:
        for page, checksum in pages:
            found = self._engine.checksums([page])[0]
            self._worker.scene.judge.kept(checksum, found, self._worker.address)

    def _show(self, items: Sequence[StepItem]) -> None:
        """The judge sees each page that is about to be written."""
        worker = self._worker
        inbound = worker.scene.plane.inbound(worker)
        for item in items:
            last = item.start + len(item.tokens) - 1
            for position in range(item.start // BLOCK_TOKENS, last // BLOCK_TOKENS + 1):
                page = item.page_table[position]
                story = f"{worker.address} page {page} at {worker.scene.heap.now_s:.4f}"
                worker.scene.judge.written(worker.cache, page, page in inbound, story)

    def _take(self, seconds: float, run: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """One call after the other."""
        worker, heap = self._worker, self._worker.scene.heap
        begins_s = max(heap.now_s, self._free_s)
        self._free_s = begins_s + seconds
        if worker.chance.random() < 0.5:
            heap.at(self._free_s, worker.guarded(lambda: done(run())))
            return

        def early() -> None:
            result = run()
            heap.at(begins_s + seconds, worker.guarded(lambda: done(result)))

        heap.at(begins_s, worker.guarded(early))
