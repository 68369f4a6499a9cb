"""What all parts of the machine share: limits, pages, jobs, counts, and the list of actions that
the current event has brought about so far.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from services.prefill.core.actions import Action
from services.prefill.core.jobs import Job, JobKey, Jobs
from services.prefill.core.turns import Turns
from shared.ids import PageId, RequestId
from shared.kv.cache import HeldPage, PageCache
from shared.kv.hashing import CacheIdentity
from shared.runtime.incarnations import Incarnations
from shared.wire.requests import WorkerRef
from shared.wire.workers import CostModel

_STORIES = 512
_STORY_LINES = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that bound the machine; the shell takes them from settings and the engine."""

    block_tokens: int
    chunk_tokens: int
    """Most prompt tokens in one engine step; at least one block."""
    queue_limit: int
    """Jobs that may wait for pages."""
    context_tokens: int
    vocab_size: int
    layout_digest: str
    lease_s: float
    grace_s: float
    cost: CostModel
    """Measured when the engine started."""
    fetch_limit: int = 8
    """Jobs that may ask or read the pool at a time; others compute."""
    offer_limit: int = 8
    """Offers under way at a time; further ones are dropped and counted."""
    loan_limit: int = 64
    """Lookups of other prefill workers whose pages are lent at a time."""
    past_limit: int = 4096
    """Ended attempts that are remembered."""
    groups: bool = True
    """Waiting jobs take turns by what is cached of them; False: first come, first served."""
    age_s: float = 0.1
    """Waiting that lifts a job by one of ten groups."""


class Diary:
    """The latest lives of requests, in words: bounded in requests and lines."""

    def __init__(self) -> None:
        self._lines: OrderedDict[RequestId, list[str]] = OrderedDict()

    def note(self, key: JobKey, now: float, text: str) -> None:
        lines = self._lines.setdefault(key.request, [])
        if len(lines) < _STORY_LINES:
            lines.append(f"{now:.3f} attempt {key.attempt}: {text}")
        while len(self._lines) > _STORIES:
            self._lines.popitem(last=False)

    def story(self, request: RequestId) -> str:
        return "\n".join(self._lines.get(request, ["unknown here"]))


@dataclass(slots=True)
class State:
    """One prefill worker's memory."""

    me: WorkerRef
    limits: Limits
    identity: CacheIdentity
    """Everything in a block's name but the namespace, which comes with each job."""
    cache: PageCache
    jobs: Jobs
    out: list[Action] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Facts by name; they only grow."""
    followers: dict[JobKey, JobKey] = field(default_factory=dict)
    """Jobs that wait for blocks which another one is fetching, with that job."""
    offers: dict[JobKey, WorkerRef] = field(default_factory=dict)
    """Offers under way, with the pool that each went to."""
    diary: Diary = field(default_factory=Diary)
    gateways: Incarnations = field(default_factory=Incarnations)
    turns: Turns = field(default_factory=Turns)
    draining: bool = False
    starved: tuple[int, int] | None = None
    """(available pages, queued jobs) when the waiting room last found no page for anyone."""
    placement_sequence: int = 0
    pages: int = field(init=False)
    """Of the worker, in whatever state."""

    def __post_init__(self) -> None:
        self.pages = self.cache.counts().total


def page_ids(pages: list[HeldPage] | tuple[HeldPage, ...]) -> tuple[PageId, ...]:
    return tuple([held.page for held in pages])


def give_back(state: State, job: Job) -> None:
    """Drop the job's own references. A lease or an open read may keep a page longer."""
    state.cache.release(page_ids(job.pages))
    job.pages = []
    job.sealed = 0
