"""Blocks that come from the pool or from another prefill worker: ask, check the answer, pull, seal.

Both are shortcuts and never a need: whatever goes wrong, the job computes instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.prefill.core import handoff, reuse
from services.prefill.core.actions import Lookup, Pull, PullPage, ReleasePool, Traced
from services.prefill.core.closing import close, depart
from services.prefill.core.events import PoolFound, PoolMissed, PullEnded
from services.prefill.core.jobs import Job, JobKey, Phase
from services.prefill.core.state import State, page_ids
from shared.dataplane.plane import PageRead
from shared.errors import Code
from shared.ids import BlockHash
from shared.wire.blocks import BlocksFound, LookupBlocks, ReleaseBlocks
from shared.wire.workers import Reading


def begin(state: State, job: Job, now: float) -> bool:
    """Ask for the blocks that follow the cached ones: those that placement counts on, else all
    there may be. What a mate is already fetching is waited for, not fetched again. False: nothing
    to ask for."""
    pool, wanted = job.source, job.reusable[job.sealed :]
    mate = _fetching(state, job)
    if mate is not None:
        state.followers[job.key] = mate.key
        state.counts["fetches_shared"] += 1
        state.jobs.move(job, Phase.FETCHING, now)
        return True
    if job.order.fetch_from is not None:
        wanted = wanted[: max(0, job.order.fetch_until - job.sealed)]
    if pool is None or not wanted:
        return False
    fetching = state.jobs.count(Phase.FETCHING) - len(state.followers)
    if fetching >= state.limits.fetch_limit:
        state.counts["fetches_skipped"] += 1
        return False
    job.asked = job.sealed + len(wanted)
    state.jobs.move(job, Phase.FETCHING, now)
    lookup = LookupBlocks(
        reader=state.me,
        layout_digest=state.limits.layout_digest,
        blocks=wanted,
        first_position=job.sealed,
    )
    state.out.append(Lookup(job.order.request, job.order.attempt, pool, lookup, peer=job.from_peer))
    return True


def resume(state: State, now: float) -> None:
    """Jobs whose mate has ended its fetch take over what came. What is missing they fetch
    themselves, but for a mate that got nothing: then they compute."""
    for key, mate_key in tuple(state.followers.items()):
        job, mate = state.jobs.find(*key), state.jobs.find(*mate_key)
        if job is not None and mate is not None and mate.phase is Phase.FETCHING:
            continue
        del state.followers[key]
        if job is None:
            continue
        before = job.sealed
        reuse.refresh(state, job, now)
        worth_asking = mate is None or job.sealed > before
        if not (worth_asking and begin(state, job, now)):
            _compute(state, job, now, f"{mate_key.request} has ended its fetch")


def reading(state: State) -> Iterator[Reading]:
    """What the jobs that fetch have still to read, and from whom."""
    for job in state.jobs.in_phase(Phase.FETCHING):
        if job.key not in state.followers and job.source is not None:
            pages = len(job.pull.pages) if job.pull is not None else job.asked - job.sealed
            yield Reading(job.source.worker, pages)


def missed(state: State, event: PoolMissed, now: float) -> None:
    job = state.jobs.find(event.request, event.attempt)
    if job is None or not _waits_for_answer(state, job):
        state.counts["late_events"] += 1
        return
    state.counts["pool_misses"] += 1
    _compute(state, job, now, event.cause)


def found(state: State, event: PoolFound, now: float) -> None:
    """Pull what the pool has, if the answer is about the blocks that were asked for."""
    job = state.jobs.find(event.request, event.attempt)
    if job is None or not _waits_for_answer(state, job):
        state.counts["late_events"] += 1
        _release_pool(state, event.found, event.peer)
        return
    pages = _wanted(job, event.found)
    if not pages:
        state.counts["pool_misses"] += 1
        _release_pool(state, event.found, event.peer)
        _compute(state, job, now, "nothing usable in the pool")
        return
    job.busy = True
    job.pull = Pull(job.order.request, job.order.attempt, event.found, pages, event.peer)
    state.out.append(job.pull)
    state.diary.note(job.key, now, f"pulls {len(pages)} blocks from {event.found.owner.worker}")


def pull_ended(state: State, event: PullEnded, now: float) -> None:
    """Keep the verified leading run; compute what is missing."""
    job = state.jobs.find(event.request, event.attempt)
    if job is None:
        job = state.jobs.leaving.get(JobKey(event.request, event.attempt))
    if job is None or job.pull is None:
        state.counts["late_events"] += 1
        return
    pull, job.pull = job.pull, None
    state.counts["damaged_blocks"] += event.damaged
    _release_pool(state, pull.source, pull.peer, _corrupted(pull, event))
    refilled = event.settled or _abandon(state, job, len(pull.pages))
    depart(state, job)
    if job.ended:
        return
    if not refilled:
        close(state, job, now, "failed", Code.KV_PAGES_EXHAUSTED)
        return
    pulled = _seal_run(state, job, event)
    state.counts["peer_blocks" if pull.peer else "pool_blocks"] += pulled
    _trace_fetch(state, job, event, pulled, now)
    handoff.share(state, job, now)
    _compute(state, job, now, f"{pulled} blocks came from the pool")


def _waits_for_answer(state: State, job: Job) -> bool:
    return job.phase is Phase.FETCHING and not job.busy and job.key not in state.followers


def _fetching(state: State, job: Job) -> Job | None:
    """Who is fetching the next block that this job lacks. A name stands for all before it."""
    at = job.sealed
    if at >= len(job.reusable):
        return None
    for mate in state.jobs.in_phase(Phase.FETCHING):
        own = mate is not job and mate.key not in state.followers
        if own and at < mate.asked and mate.hashes[at] == job.hashes[at]:
            return mate
    return None


def _compute(state: State, job: Job, now: float, why: str) -> None:
    state.diary.note(job.key, now, f"computes from token {job.computed_tokens}: {why}")
    state.jobs.move(job, Phase.READY, now)


def _release_pool(
    state: State, found: BlocksFound, peer: bool, corrupted: tuple[BlockHash, ...] = ()
) -> None:
    release = ReleaseBlocks(state.me.worker, found.ticket, corrupted)
    state.out.append(ReleasePool(found.owner, release, peer))


def _corrupted(pull: Pull, event: PullEnded) -> tuple[BlockHash, ...]:
    """Blocks whose bytes came and were not theirs: the pool must not lend them again."""
    if not event.damaged:
        return ()
    good = {page.position for page in event.pages}
    pulled = {page.position for page in pull.pages} - good
    refs = pull.source.pages
    return tuple(ref.block for ref in refs if ref.block is not None and ref.position in pulled)


def _wanted(job: Job, found: BlocksFound) -> tuple[PullPage, ...]:
    """The leading pages of the answer that are exactly the blocks asked for, in order."""
    pages: list[PullPage] = []
    for position, ref in zip(range(job.sealed, len(job.reusable)), found.pages, strict=False):
        expected = (position, job.hashes[position], job.block_tokens)
        if (ref.position, ref.block, ref.tokens) != expected:
            break
        read = PageRead(ref.page, ref.generation, job.pages[position].page)
        pages.append(PullPage(position, read, ref.checksum))
    return tuple(pages)


def _abandon(state: State, job: Job, count: int) -> bool:
    """Bytes may still land in the targets: they never come back into circulation. False when
    there are no pages to take their place."""
    start, stop = job.sealed, job.sealed + count
    state.cache.quarantine(page_ids(job.pages[start:stop]))
    state.counts["pages_abandoned"] += count
    fresh = None if job.ended else state.cache.grant(count)
    job.pages[start:stop] = fresh or ()
    return fresh is not None


def _seal_run(state: State, job: Job, event: PullEnded) -> int:
    """Seal the verified pages that follow the sealed ones without a gap."""
    checksums = {page.position: page.checksum for page in event.pages} if event.settled else {}
    before = job.sealed
    while job.sealed < len(job.reusable) and job.sealed in checksums:
        handoff.seal(state, job, job.sealed, checksums[job.sealed])
    job.cached_blocks = job.sealed
    job.computed_tokens = job.sealed * job.block_tokens
    return job.sealed - before


def _trace_fetch(state: State, job: Job, event: PullEnded, pulled: int, now: float) -> None:
    pool = job.source
    attributes: dict[str, str | int | float | bool] = {
        "baton.fetch.tier": "peer" if job.from_peer else "host",
        "baton.fetch.peer": pool.worker if pool else "",
        "baton.fetch.blocks": pulled,
        "baton.fetch.damaged": event.damaged,
    }
    if event.damaged:
        attributes["error.type"] = Code.INTEGRITY_FAILED.value
    start_s, key = job.phase_since_s, job.key
    state.out.append(Traced(key.request, key.attempt, "prefill.fetch", start_s, now, attributes))
