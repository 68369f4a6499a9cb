"""Blocks that others have put into the cache meanwhile: a job takes them over instead of its own
empty pages.
"""

from __future__ import annotations

from services.prefill.core import handoff
from services.prefill.core.jobs import Job
from services.prefill.core.state import State, page_ids


def refresh(state: State, job: Job, now: float) -> None:
    """Right before its first chunk, or when somebody else's fetch is over."""
    if state.cache.peek(job.reusable) <= job.sealed:
        return
    found = state.cache.match(job.reusable)
    known, gained = found[: job.sealed], found[job.sealed :]
    state.cache.release(page_ids(known))
    state.cache.release(page_ids(job.pages[job.sealed : len(found)]))
    job.pages[job.sealed : len(found)] = gained
    reuse(state, job, len(found), now)


def reuse(state: State, job: Job, blocks: int, now: float) -> None:
    """The first `blocks` pages came from a cache and are final: count and announce them."""
    job.sealed = job.cached_blocks = blocks
    job.computed_tokens = blocks * job.block_tokens
    handoff.share(state, job, now)
