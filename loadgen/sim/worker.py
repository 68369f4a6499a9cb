"""What prefill, decode and pool processes have in common: pages, a plane, one engine thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from loadgen.sim.bus import Respond
from loadgen.sim.membership import NO_BLOCKS, NO_LOAD, Membership, Traits
from loadgen.sim.process import Process
from loadgen.sim.scene import Scene
from shared.dataplane.plane import PageMemory
from shared.ids import BlockHash, Epoch, Generation, PageId, WorkerId
from shared.kv.blocks import State
from shared.kv.cache import PageCache, Removed, Stored
from shared.wire.codec import Message
from shared.wire.requests import WorkerRef
from shared.wire.workers import CostModel, StepSample, WorkerLoad


class Worker(Process):
    """A process with pages. Subclasses build their core in `_begin`."""

    tier: ClassVar[str] = "device"

    def __init__(self, scene: Scene, name: str, incarnation: int, pages: int) -> None:
        super().__init__(scene, name, incarnation)
        self.engine = scene.works.room(self, pages)
        self.cache = PageCache(pages, scene.works.model.block_tokens)
        self.cost = self._cost()
        traits = Traits(self.address, self.tier, self.cost)
        self.membership = Membership(self, traits, self, self._begin)
        self.evicted = 0
        self.rotten: set[PageId] = set()
        """Pages in which a fault has turned a bit."""
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

    def _cost(self) -> CostModel:
        """What this host says of its engine."""
        return self.scene.works.cost(self.name)

    def check_bytes(self) -> None:
        """Every page that can be found holds what it held when it was sealed (I4, I13)."""
        kept: list[tuple[PageId, int | None]] = []
        for page in self.cache.granted():
            seen = self.cache.look(page)
            findable = seen.state in (State.CACHED, State.REFERENCED, State.LEASED)
            if seen.sealed and findable and page not in self.rotten:
                kept.append((page, seen.checksum))
        self.engine.check_bytes(kept)

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

    def steps(self) -> tuple[StepSample, ...]:
        return self.engine.measured()

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
