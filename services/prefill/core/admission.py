"""The door and the waiting room: which jobs are taken in, and when one gets its pages.

A job gets all pages of its prompt at once, so a job that has begun can always finish.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from services.prefill.core import fetching
from services.prefill.core.actions import Answer, JobOpened, Traced
from services.prefill.core.batching import bypassing
from services.prefill.core.closing import close
from services.prefill.core.events import JobArrived
from services.prefill.core.jobs import Job, JobKey, Phase
from services.prefill.core.reuse import reuse
from services.prefill.core.state import State, page_ids
from services.prefill.core.turns import group_of
from services.prefill.core.work import prefill_seconds
from shared.errors import Code
from shared.ids import BlockHash
from shared.kv.hashing import CacheIdentity, block_hashes
from shared.wire.requests import TOP_PRIORITY, Accepted, PrefillJob, Refused

NONE_COMPUTING: Final[Mapping[JobKey, int]] = MappingProxyType({})
_RUNWAY_STEPS = 2
"""Ready work, in steps, beyond which no further job takes pages."""


def arrive(state: State, event: JobArrived, now: float) -> Answer:
    """Take a job in, or say why not. The same job again gets the same answer; after a refusal it
    is stale, so that a late copy is not computed for nobody."""
    order = event.job
    if state.gateways.outdated(order.gateway, event.gateway_epoch, now):
        state.counts["fenced_epoch"] += 1
        return Refused(Code.STALE, "a newer incarnation of this gateway has spoken")
    if order.epoch not in (0, state.me.epoch):
        state.counts["fenced_epoch"] += 1
        return Refused(Code.WORKER_LOST, "the incarnation that this is for is gone")
    state.placement_sequence = max(state.placement_sequence, order.placement_sequence)
    live = state.jobs.live.get(order.request)
    if live is not None and live.order.attempt == order.attempt:
        state.counts["duplicate_jobs"] += 1
        return Accepted(state.me.worker, state.me.epoch)
    if live is not None and live.order.attempt < order.attempt:
        close(state, live, now, "superseded")
    refusal = _refusal(state, order)
    if refusal is not None:
        state.counts[f"refused_{refusal.code}"] += 1
        state.jobs.remember(order.request, order.attempt, None)
        key = JobKey(order.request, order.attempt)
        state.diary.note(key, now, f"refused at the door: {refusal.code}")
        return refusal
    _open(state, event, now)
    return Accepted(state.me.worker, state.me.epoch)


def admit(state: State, now: float) -> None:
    """Give pages to waiting jobs as long as the engine has use for more ready work."""
    ready = sum(job.left_tokens for job in state.jobs.in_phase(Phase.READY))
    runway = _RUNWAY_STEPS * state.limits.chunk_tokens
    if ready >= runway or state.starved == _supply(state):
        return
    queued: Iterable[Job] = state.jobs.in_phase(Phase.QUEUED)
    if state.limits.groups:
        queued = state.turns.in_turn(state.jobs.in_phase(Phase.QUEUED))
    for job in bypassing(queued, lambda job: _take_pages(state, job, now)):
        state.turns.charge(job, job.left_tokens)
        if not fetching.begin(state, job, now):
            state.jobs.move(job, Phase.READY, now)
            ready += job.left_tokens
        if ready >= runway:
            return
    state.starved = _supply(state)


def regroup(state: State, now: float) -> None:
    """What is cached of the waiting changes all the time: so do their groups."""
    if state.limits.groups:
        for job in state.jobs.in_phase(Phase.QUEUED):
            _group(state, job, now)


def _group(state: State, job: Job, now: float) -> None:
    cached = state.cache.peek(job.reusable) * job.block_tokens
    waited_s = now - job.arrived_s
    priority = job.order.priority
    job.group = group_of(cached, job.prompt_tokens, waited_s, state.limits.age_s, priority)


def work_left_s(state: State, computing: Mapping[JobKey, int] = NONE_COMPUTING) -> float:
    """Engine seconds for all that waits here, less the tokens that are being computed. A block
    that several wait for is computed once."""
    parts: list[tuple[int, int]] = []
    coming: set[BlockHash] = set()
    for job in state.jobs.live.values():
        begun = job.computed_tokens + computing.get(job.key, 0)
        if not job.started:
            begun = max(begun, _coming(state, job, coming) * job.block_tokens)
        if begun < job.prompt_tokens or job.key in computing:
            coming.update(job.reusable)
        parts.append((job.prompt_tokens - begun, begun))
    return prefill_seconds(state.limits.cost, parts, state.limits.chunk_tokens)


def _coming(state: State, job: Job, coming: set[BlockHash]) -> int:
    """Leading blocks that are cached, or that jobs before it compute. A name stands for all blocks
    before it, so the last shared one is found by bisection."""
    blocks = job.reusable
    low, high = state.cache.peek(blocks), len(blocks)
    while low < high:
        middle = (low + high + 1) // 2
        if blocks[middle - 1] in coming:
            low = middle
        else:
            high = middle - 1
    return low


def _refusal(state: State, order: PrefillJob) -> Refused | None:
    limits, request = state.limits, order.request
    live, past = state.jobs.live.get(request), state.jobs.past(request)
    newest = max(live.order.attempt if live else 0, past.attempt if past else 0)
    if order.attempt <= newest:
        state.counts["fenced_attempt"] += 1
        return Refused(Code.STALE, "this attempt has ended")
    if state.draining:
        return Refused(Code.DRAINING, "the worker is draining")
    if abs(order.priority) > TOP_PRIORITY:
        return Refused(Code.INVALID_PARAMETER, "the priority is out of range")
    if not order.tokens or order.sampling.max_tokens < 1:
        return Refused(Code.INVALID_PARAMETER, "a job needs a prompt and room for a token")
    if not 0 <= min(order.tokens) <= max(order.tokens) < limits.vocab_size:
        return Refused(Code.INVALID_PARAMETER, "a token id is outside the vocabulary")
    if len(order.tokens) > limits.context_tokens:
        return Refused(Code.CONTEXT_LENGTH_EXCEEDED, "the prompt is longer than the context")
    if order.deadline_s <= 0:
        return Refused(Code.DEADLINE_EXCEEDED, "no time is left")
    if -(-len(order.tokens) // limits.block_tokens) > state.pages:
        return Refused(Code.KV_PAGES_EXHAUSTED, "the prompt can never fit")
    if state.jobs.count(Phase.QUEUED) >= limits.queue_limit:
        wait_s = min(30.0, max(1.0, work_left_s(state)))
        return Refused(Code.QUEUE_FULL, "the queue is full", retry_after_s=wait_s)
    return None


def _open(state: State, event: JobArrived, now: float) -> None:
    order = event.job
    identity = _within(state.identity, order.namespace)
    job = Job(
        order=order,
        ticket=event.ticket,
        offer_ticket=event.offer_ticket,
        hashes=block_hashes(identity, order.tokens),
        block_tokens=state.limits.block_tokens,
        arrived_s=now,
        gateway_epoch=event.gateway_epoch,
        deadline_s=now + order.deadline_s,
        phase_since_s=now,
    )
    _group(state, job, now)
    state.jobs.add(job)
    state.counts["jobs_accepted"] += 1
    state.out.append(JobOpened(order.request, order.attempt, event.trace))
    state.diary.note(job.key, now, f"accepted with {job.prompt_tokens} tokens")


@functools.lru_cache(maxsize=256)
def _within(identity: CacheIdentity, namespace: str) -> CacheIdentity:
    """The same in a tenant's space."""
    return dataclasses.replace(identity, namespace=namespace)


def _take_pages(state: State, job: Job, now: float) -> bool:
    """All pages of the prompt, cached ones first; or nothing."""
    short = job.prompt_pages - state.cache.available
    if short > 0 and short > state.cache.peek(job.reusable):
        return False
    cached = state.cache.match(job.reusable)
    fresh = state.cache.grant(job.prompt_pages - len(cached))
    if fresh is None:
        state.cache.release(page_ids(cached))
        return False
    job.pages = [*cached, *fresh]
    _trace_queue(state, job, now)
    state.diary.note(job.key, now, f"got {len(fresh)} pages, {len(cached)} blocks were cached")
    reuse(state, job, len(cached), now)
    return True


def _supply(state: State) -> tuple[int, int]:
    """While neither changes, a queue that found no pages finds none again."""
    return state.cache.available, state.jobs.count(Phase.QUEUED)


def _trace_queue(state: State, job: Job, now: float) -> None:
    attributes: dict[str, str | int | float | bool] = {
        "baton.queue.depth": state.jobs.count(Phase.QUEUED),
        "baton.pages.reserved": len(job.pages),
        "baton.pages.free": state.cache.available,
    }
    key = job.key
    state.out.append(
        Traced(key.request, key.attempt, "prefill.queue", job.arrived_s, now, attributes)
    )
