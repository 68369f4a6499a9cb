"""The seam between a simulated worker and the engine in it: what model it serves, what a step does
and how long it takes. Fault runs have the real hashchain engine, performance runs a price list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shared.dataplane.plane import PageMemory
from shared.engine.batch import StepItem
from shared.ids import PageId
from shared.wire.workers import CostModel, StepSample

if TYPE_CHECKING:
    from loadgen.sim.worker import Worker

Tokens = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What all hosts of one run agree on."""

    digest: str
    tokenizer_digest: str
    layout_digest: str
    dtype: str
    block_tokens: int
    page_bytes: int
    context_tokens: int
    vocab_size: int


class EngineRoom(Protocol):
    """One worker's engine thread: one call after the other."""

    @property
    def memory(self) -> PageMemory: ...

    def step(self, items: Sequence[StepItem], done: Callable[[Tokens | None], None]) -> None:
        """Run one step; None when it failed. `done` is never called before this returns."""
        ...

    def sums(self, pages: Sequence[PageId], done: Callable[[tuple[int, ...]], None]) -> None:
        """Checksums of pages."""
        ...

    def measured(self) -> tuple[StepSample, ...]:
        """Steps since this was last asked, for the heartbeat; fault runs tell none."""
        ...

    def check_bytes(self, pages: Sequence[tuple[PageId, int | None]]) -> None:
        """Every sealed page (with its checksum) holds what it held when it was sealed."""
        ...


class Works(Protocol):
    """Builds engines for one run."""

    @property
    def model(self) -> ServedModel: ...

    def cost(self, name: str) -> CostModel:
        """What this host reports of itself."""
        ...

    def room(self, worker: Worker, pages: int) -> EngineRoom: ...
