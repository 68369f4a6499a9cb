"""Which prompt tokens go into the next engine step, and who may get pages before whom.

Pure choices over job records: several short jobs in one step, a chunk that is not a job's last
ends on a block border, a block that a mate computes is waited for. Touches no pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from services.prefill.core.jobs import BYPASS_LIMIT, Job
from shared.costs import Costs, waiting_pays
from shared.ids import BlockHash

_STEP_JOBS: Final = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """A job's share of a step: `tokens` prompt tokens from position `start`."""

    job: Job
    start: int
    tokens: int

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def last(self) -> bool:
        return self.end == self.job.prompt_tokens

    @property
    def positions(self) -> range:
        """Page positions that are full, or final, after this chunk."""
        size = self.job.block_tokens
        return range(self.start // size, -(-self.end // size))


def chunk_size(start: int, left: int, budget: int, block_tokens: int) -> int:
    """Tokens of the next chunk: all that is left if it fits, else down to a block border."""
    if left <= budget:
        return left
    return max(0, (start + budget) // block_tokens * block_tokens - start)


def plan(
    ready: Iterable[Job], budget_tokens: int, refresh: Callable[[Job], None], costs: Costs
) -> tuple[Chunk, ...]:
    """The chunks of the next step. `refresh` is called before a job's first chunk is cut: the
    job may then have more cached blocks. A job whose next blocks are computed in this very step
    stands back and shares them afterwards, where that is cheaper.
    """
    jobs = tuple(ready)
    outcast = next((job for job in jobs if job.alone), None)
    if outcast is not None:
        jobs = (outcast,)
    chunks: list[Chunk] = []
    computing: set[BlockHash] = set()
    for job in jobs:
        if budget_tokens <= 0 or len(chunks) == _STEP_JOBS:
            break
        if not job.started:
            refresh(job)
            if _stands_back(job, computing, budget_tokens, len(chunks), costs):
                job.waited_at = job.sealed
                continue
        chunk = _cut(job, budget_tokens)
        if chunk.tokens == 0:
            continue
        job.started = True
        budget_tokens -= chunk.tokens
        chunks.append(chunk)
        computing.update(_blocks(chunk))
    return tuple(chunks)


def bypassing(queued: Iterable[Job], can_take: Callable[[Job], bool]) -> Iterator[Job]:
    """Jobs that may take pages now, in order. The first one that is short of pages is passed
    over, at most `BYPASS_LIMIT` times in its life; then everyone behind it waits."""
    head: Job | None = None
    passed = 0
    for job in queued:
        if head is not None and (head.bypassed >= BYPASS_LIMIT or passed >= 2 * BYPASS_LIMIT):
            return
        if can_take(job):
            if head is not None:
                head.bypassed += 1
            yield job
        elif head is None:
            head = job
        else:
            passed += 1


def _cut(job: Job, budget_tokens: int) -> Chunk:
    tokens = chunk_size(job.computed_tokens, job.left_tokens, budget_tokens, job.block_tokens)
    return Chunk(job, job.computed_tokens, tokens)


def _stands_back(
    job: Job, computing: set[BlockHash], budget_tokens: int, mates: int, costs: Costs
) -> bool:
    """Whether to let this step go by. Never twice for the same block: a mate that was cancelled or
    failed holds nobody up for longer than the step it was in."""
    if job.sealed <= job.waited_at:
        return False
    shared = sum(1 for _ in takewhile(computing.__contains__, job.reusable[job.sealed :]))
    own_tokens = min(job.left_tokens, budget_tokens)
    return waiting_pays(costs, shared * job.block_tokens, own_tokens, mates)


def _blocks(chunk: Chunk) -> tuple[BlockHash, ...]:
    size = chunk.job.block_tokens
    return chunk.job.hashes[chunk.start // size : chunk.end // size]
