"""The record of one prefill job, and the table of all of them.

Knows what a job is made of and where it stands; grants nothing, sends nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from services.prefill.core.actions import Pull
from shared.ids import Attempt, BlockHash, RequestId
from shared.kv.cache import HeldPage
from shared.kv.leases import LeaseName
from shared.wire.requests import PrefillJob, TokenEntry, WorkerRef

BYPASS_LIMIT: Final = 8
"""Jobs that may take pages before one that is short of them."""


class JobKey(NamedTuple):
    request: RequestId
    attempt: Attempt


class Phase(StrEnum):
    QUEUED = "queued"
    """Holds nothing."""
    FETCHING = "fetching"
    """Holds its pages; the pool or a peer is being asked or read, for it or for a mate."""
    READY = "ready"
    """Holds its pages; chunks are left to compute."""
    HANDED = "handed"
    """All computed and sealed; decode takes it from here, under the lease."""


@dataclass(slots=True, eq=False)
class Job:
    """One (request, attempt). Pages are in order of position; the first `sealed` of them are
    final, the first `shared` were announced to decode and are leased."""

    order: PrefillJob
    ticket: str
    offer_ticket: str
    hashes: tuple[BlockHash, ...]
    """Names of the full blocks of the prompt."""
    block_tokens: int
    arrived_s: float
    gateway_epoch: int | None
    deadline_s: float
    """An instant on our own clock."""
    phase: Phase = Phase.QUEUED
    pages: list[HeldPage] = field(default_factory=list)
    sealed: int = 0
    shared: int = 0
    computed_tokens: int = 0
    """Tokens whose keys and values are in the pages, cached ones included."""
    cached_blocks: int = 0
    """Leading blocks that came from a cache, ours or the pool's."""
    started: bool = False
    """The first chunk was planned."""
    group: int = 0
    """Among those that wait; see turns.py."""
    waited_at: int = -1
    """Sealed blocks when it last stood back for a sibling that computes the next one."""
    alone: bool = False
    """Was in a step that failed: runs by itself from now on."""
    busy: bool = False
    """The engine or a pull works on the pages right now."""
    asked: int = 0
    """Leading blocks that its own fetch may bring."""
    pull: Pull | None = None
    """The pull that is under way, into the pages after the sealed ones."""
    ended: bool = False
    bypassed: int = 0
    messages: int = 0
    """`PagesReady` messages made so far."""
    first: TokenEntry | None = None
    phase_since_s: float = 0.0

    @property
    def key(self) -> JobKey:
        return JobKey(self.order.request, self.order.attempt)

    @property
    def source(self) -> WorkerRef | None:
        """Whom to ask for blocks that are not here."""
        return self.order.fetch_from or self.order.kvpool

    @property
    def from_peer(self) -> bool:
        """Whether that is another prefill worker."""
        wanted, node = self.order.fetch_from, self.order.kvpool
        return wanted is not None and (node is None or node.worker != wanted.worker)

    @property
    def pressing(self) -> bool:
        """Smaller jobs have taken pages before it often enough."""
        return self.bypassed >= BYPASS_LIMIT

    @property
    def lease(self) -> LeaseName:
        return LeaseName(self.order.request, self.order.attempt)

    @property
    def prompt_tokens(self) -> int:
        return len(self.order.tokens)

    @property
    def prompt_pages(self) -> int:
        return -(-self.prompt_tokens // self.block_tokens)

    @property
    def left_tokens(self) -> int:
        return self.prompt_tokens - self.computed_tokens

    @property
    def reusable(self) -> tuple[BlockHash, ...]:
        """Blocks that may come from a cache: never the one with the last prompt token, since
        that token must be computed to draw the next one."""
        return self.hashes[: (self.prompt_tokens - 1) // self.block_tokens]

    @property
    def cached_tokens(self) -> int:
        return self.cached_blocks * self.block_tokens

    def block(self, position: int) -> BlockHash | None:
        """The name of the block at a position, None for a partial one."""
        return self.hashes[position] if position < len(self.hashes) else None


class Past(NamedTuple):
    """What is remembered of a request that ended here."""

    attempt: Attempt
    """The newest attempt that ended or was cancelled."""
    first: TokenEntry | None


class Jobs:
    """All jobs by request (one attempt each), and the newest ended attempts."""

    def __init__(self, past_limit: int) -> None:
        self.live: dict[RequestId, Job] = {}
        self.leaving: dict[JobKey, Job] = {}
        """Ended jobs whose pages the engine or a pull still touches."""
        self._by_phase: dict[Phase, dict[JobKey, Job]] = {phase: {} for phase in Phase}
        self._past: OrderedDict[RequestId, Past] = OrderedDict()
        self._past_limit = past_limit

    def add(self, job: Job) -> None:
        self.live[job.order.request] = job
        self._by_phase[job.phase][job.key] = job

    def move(self, job: Job, phase: Phase, now: float) -> None:
        """To the end of another phase."""
        del self._by_phase[job.phase][job.key]
        job.phase = phase
        job.phase_since_s = now
        self._by_phase[phase][job.key] = job

    def remove(self, job: Job) -> None:
        del self.live[job.order.request]
        del self._by_phase[job.phase][job.key]

    def find(self, request: RequestId, attempt: Attempt) -> Job | None:
        """The live job of exactly this attempt."""
        job = self.live.get(request)
        return job if job is not None and job.order.attempt == attempt else None

    def in_phase(self, phase: Phase) -> tuple[Job, ...]:
        """Jobs of a phase in the order in which they came to it."""
        return tuple(self._by_phase[phase].values())

    def count(self, phase: Phase) -> int:
        return len(self._by_phase[phase])

    def past(self, request: RequestId) -> Past | None:
        return self._past.get(request)

    def remember(self, request: RequestId, attempt: Attempt, first: TokenEntry | None) -> None:
        """From now on this attempt and older ones are stale."""
        known = self._past.pop(request, None)
        if known is not None and known.attempt > attempt:
            self._past[request] = known
            return
        self._past[request] = Past(attempt, first or (known.first if known else None))
        while len(self._past) > self._past_limit:
            self._past.popitem(last=False)
