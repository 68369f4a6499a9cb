"""What prefill, decode and pool processes have in common: pages, a plane, one engine thread.

The engine is the real one, run inline; its time is charged on the virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loadgen.sim import costs
from loadgen.sim.bus import Respond
from loadgen.sim.membership import NO_BLOCKS, NO_LOAD, Membership, Traits
from loadgen.sim.oracle import BLOCK_TOKENS, build_engine
from loadgen.sim.process import Process
from loadgen.sim.scene import Scene
from shared.dataplane.plane import PageMemory
from shared.engine.batch import StepItem
from shared.engine.hashchain import HashchainEngine
from shared.errors import EngineError
from shared.ids import BlockHash, Epoch, Generation, PageId, WorkerId
from shared.kv.blocks import State
from shared.kv.cache import PageCache, Removed, Stored
from shared.wire.codec import Message
from shared.wire.requests import WorkerRef
from shared.wire.workers import CostModel, WorkerLoad

_INITIAL_DUST = 0xA5
"""What a page holds before anyone wrote it."""


class Worker(Process):
    """A process with pages. Subclasses build their core in `_begin`."""

    tier = "device"
    cost: CostModel = costs.MODEL

    def __init__(self, scene: Scene, name: str, incarnation: int, pages: int) -> None:
        super().__init__(scene, name, incarnation)
        self.engine: HashchainEngine = build_engine(pages)
        self.engine.memory.bytes.fill(_INITIAL_DUST)
        self.cache = PageCache(pages, BLOCK_TOKENS)
        traits = Traits(self.address, self.tier, self.cost)
        self.membership = Membership(self, traits, self, self._begin)
        self.evicted = 0
        self.rotten: set[PageId] = set()
        """Pages in which a fault has turned a bit."""
        self._engine_free_s = 0.0
        self._calls: dict[int, Respond] = {}
        self._last_call = 0

    def start(self) -> None:
        self.scene.plane.join(self)
        self.membership.join()

    def reconnected(self) -> None:
        self.membership.beat()

    def _begin(self, epoch: Epoch) -> None:
        """The epoch is there: build the core, subscribe, tick."""
        raise NotImplementedError

    @property
    def ref(self) -> WorkerRef:
        return WorkerRef(WorkerId(self.name), self.membership.epoch, self.address)

    def check_bytes(self) -> None:
        """Every page that can be found holds what it held when it was sealed (I4, I13)."""
        for page in self.cache.granted():
            seen = self.cache.look(page)
            kept = seen.sealed and seen.state in (State.CACHED, State.REFERENCED, State.LEASED)
            if kept and page not in self.rotten:
                self.scene.judge.kept(seen.checksum, self.engine.checksums([page])[0], self.address)

    # -- the plane's view ------------------------------------------------------------------

    @property
    def memory(self) -> PageMemory:
        return self.engine.memory

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        """Nobody reads from this role."""
        return None

    def close_read(self, read: int) -> None:
        """There is none."""

    def published(self, events: Sequence[Stored | Removed]) -> None:
        """The set of findable blocks changed."""
        self.evicted += sum(isinstance(event, Removed) for event in events)
        self.membership.publish_blocks(events)

    # -- the membership's view -------------------------------------------------------------

    def load(self) -> WorkerLoad:
        return NO_LOAD

    def blocks(self) -> tuple[BlockHash, ...]:
        return self.cache.blocks()

    def digest(self) -> tuple[int, str]:
        return self.cache.digest() if self.membership.epoch else (0, NO_BLOCKS)

    # -- questions from the bus ------------------------------------------------------------

    def call(self, respond: Respond) -> int:
        """A number for an open question; `answer` gives it its answer."""
        self._last_call += 1
        self._calls[self._last_call] = respond
        return self._last_call

    def answer(self, call: int, message: Message) -> None:
        respond = self._calls.pop(call, None)
        if respond is not None:
            respond(message)

    # -- the engine thread -----------------------------------------------------------------

    def step(
        self, items: Sequence[StepItem], done: Callable[[tuple[int | None, ...] | None], None]
    ) -> None:
        """One engine step; None when it failed."""
        failed = self.scene.weather.hit("engine_error", self.name) is not None

        def run() -> tuple[int | None, ...] | None:
            if failed:
                return None
            inbound = self.scene.plane.inbound(self)
            for item in items:
                last = item.start + len(item.tokens) - 1
                for position in range(item.start // BLOCK_TOKENS, last // BLOCK_TOKENS + 1):
                    page = item.page_table[position]
                    story = f"{self.address} page {page} at {self.scene.heap.now_s:.4f}"
                    self.scene.judge.written(self.cache, page, page in inbound, story)
            try:
                return self.engine.step(items).tokens
            except EngineError:
                return None

        self._on_engine(costs.step_s(items, self.chance), run, done)

    def sums(self, pages: Sequence[PageId], done: Callable[[tuple[int, ...]], None]) -> None:
        """Checksums on the engine thread."""
        seconds = costs.sum_s(len(pages), self.chance)
        self._on_engine(seconds, lambda: self.engine.checksums(pages), done)

    def _on_engine(
        self, seconds: float, run: Callable[[], Any], done: Callable[[Any], None]
    ) -> None:
        """One call after the other. Its bytes are read and written at the beginning or at the
        end, as chance has it."""
        heap = self.scene.heap
        begins_s = max(heap.now_s, self._engine_free_s)
        self._engine_free_s = begins_s + seconds
        if self.chance.random() < 0.5:
            heap.at(self._engine_free_s, self.guarded(lambda: done(run())))
            return

        def early() -> None:
            result = run()
            heap.at(begins_s + seconds, self.guarded(lambda: done(result)))

        heap.at(begins_s, self.guarded(early))
