"""Prefill's side of the handoff: leases, `PagesReady` messages, what decode answers, offers.

Decides what is announced and how long it stays readable; sends nothing itself.
"""

from __future__ import annotations

from typing import Final

from services.prefill.core.actions import Offer, SendPages, Traced
from services.prefill.core.closing import close
from services.prefill.core.events import OfferEnded, PagesAcknowledged, PagesRefused
from services.prefill.core.jobs import Job, JobKey, Phase
from services.prefill.core.state import State, page_ids
from shared.errors import Code
from shared.ids import RequestId
from shared.kv.invariants import InvariantError
from shared.kv.leases import LeaseName
from shared.wire.blocks import OfferBlocks
from shared.wire.requests import LeaseKey, PageRef, PagesReady, ReleaseLease, RenewLeases
from shared.wire.workers import WorkerLost

_MESSAGE_PAGES: Final = 512
"""Keeps one `PagesReady` below a tenth of the bus's payload limit."""
_OFFER_PAGES: Final = 2048


def offer_lease(key: JobKey) -> LeaseName:
    """Offers outlive their job, so their lease has a name of its own."""
    return LeaseName(RequestId(f"{key.request}/offer"), key.attempt)


def share(state: State, job: Job, now: float) -> None:
    """Lease the pages that were sealed since the last time and announce them to decode."""
    positions = range(job.shared, job.sealed)
    if not positions:
        return
    pages = job.pages[job.shared : job.sealed]
    state.cache.lease(job.lease, job.ticket, page_ids(pages), now, state.limits.lease_s)
    job.shared = job.sealed
    refs = _refs(job, positions)
    for at in range(0, len(refs), _MESSAGE_PAGES):
        final = at + _MESSAGE_PAGES >= len(refs)
        part = refs[at : at + _MESSAGE_PAGES]
        state.out.append(SendPages(job.order.decode, _ready(state, job, part, final)))
        job.messages += 1
    state.diary.note(job.key, now, f"announced pages {positions.start}..{positions.stop - 1}")


def acknowledged(state: State, event: PagesAcknowledged, now: float) -> None:
    """Decode has the announcement, so it is alive: as good as a renewal."""
    job = state.jobs.find(event.request, event.attempt)
    if job is None:
        state.counts["late_events"] += 1
    else:
        state.cache.renew(job.lease, now, state.limits.lease_s)


def refused(state: State, event: PagesRefused, now: float) -> None:
    """Decode does not know the attempt or has ended it: nothing is left to do for it here.
    `stale` means that whoever ended it also told the gateway."""
    job = state.jobs.find(event.request, event.attempt)
    if job is None:
        state.counts["late_events"] += 1
        return
    code = None if event.code == Code.STALE else _code(event.code)
    close(state, job, now, "refused", code)


def renew(state: State, message: RenewLeases, now: float) -> tuple[LeaseKey, ...]:
    """Extend what the reader still waits for; the answer names what is gone. A job that has
    announced nothing yet holds no lease, but it is not gone."""
    gone: list[LeaseKey] = []
    for key in message.leases:
        job = state.jobs.find(key.request, key.attempt)
        if job is None or not _reads(job, message.reader, message.epoch):
            gone.append(key)
        elif job.shared and not state.cache.renew(job.lease, now, state.limits.lease_s):
            expire(state, job, now)
            gone.append(key)
    return tuple(gone)


def release(state: State, message: ReleaseLease, now: float) -> None:
    """The reader is done with the attempt. Another reader's word does not count."""
    key = message.lease
    job = state.jobs.find(key.request, key.attempt)
    if job is None:
        state.counts["late_events"] += 1
    elif not _reads(job, message.reader, message.epoch):
        state.counts["fenced_epoch"] += 1
    else:
        close(state, job, now, "released")


def sweep(state: State, now: float) -> None:
    """End everything whose lease ran out."""
    for name in state.cache.sweep(now):
        state.counts["lease_expiries"] += 1
        job = state.jobs.find(name.request, name.attempt)
        if job is not None:
            expire(state, job, now)
    for key in [key for key in state.offers if not state.cache.has_lease(offer_lease(key))]:
        del state.offers[key]


def expire(state: State, job: Job, now: float) -> None:
    """Nobody renewed the lease. Before the last page was announced that is a failure to tell;
    afterwards decode finds out by itself, since its reads are refused."""
    close(state, job, now, "expired", None if job.phase is Phase.HANDED else Code.WORKER_LOST)


def offer(state: State, job: Job, now: float) -> None:
    """Offer the prompt's full blocks to the pool, for a while, if this job computed any. The
    pool pulls only those it lacks; cached ones are named too, since it may have lost them."""
    pool = job.order.kvpool
    if pool is None or job.cached_blocks == len(job.hashes):
        return
    positions = range(len(job.hashes))[-_OFFER_PAGES:]
    if len(state.offers) >= state.limits.offer_limit:
        state.counts["offers_dropped"] += 1
        return
    pages = job.pages[positions.start : positions.stop]
    name = offer_lease(job.key)
    state.cache.lease(name, job.offer_ticket, page_ids(pages), now, state.limits.lease_s)
    state.offers[job.key] = pool
    message = OfferBlocks(
        owner=state.me,
        ticket=job.offer_ticket,
        namespace=job.order.namespace,
        layout_digest=state.limits.layout_digest,
        pages=_refs(job, positions),
        parent=job.hashes[positions.start - 1] if positions.start else None,
    )
    state.out.append(Offer(job.order.request, job.order.attempt, pool, message))


def offer_ended(state: State, event: OfferEnded) -> None:
    """The pool is done with the pages of an offer."""
    key = JobKey(event.request, event.attempt)
    if state.offers.pop(key, None) is None:
        state.counts["late_events"] += 1
        return
    state.counts["blocks_kept"] += event.kept
    state.cache.end_lease(offer_lease(key))


def pool_lost(state: State, lost: WorkerLost) -> None:
    """Offers to a dead pool node end."""
    for key, pool in tuple(state.offers.items()):
        if lost.role == "kvpool" and pool.worker == lost.worker and pool.epoch <= lost.epoch:
            offer_ended(state, OfferEnded(key.request, key.attempt, kept=0))


def end_offers(state: State) -> None:
    """End all offers, whatever the pool is doing."""
    for key in tuple(state.offers):
        offer_ended(state, OfferEnded(key.request, key.attempt, kept=0))


def seal(state: State, job: Job, position: int, checksum: int) -> None:
    """Make the next page final; a full block can be found from now on."""
    block = job.block(position)
    parent = job.hashes[position - 1] if block is not None and position else None
    job.pages[position] = state.cache.seal(job.pages[position].page, checksum, block, parent)
    job.sealed = position + 1


def seal_span(job: Job, start_s: float, now: float, pages: int, lease_s: float) -> Traced:
    attributes: dict[str, str | int | float | bool] = {
        "baton.seal.pages": pages,
        "baton.seal.lease_s": lease_s,
    }
    return Traced(job.order.request, job.order.attempt, "prefill.seal", start_s, now, attributes)


def _reads(job: Job, reader: str, epoch: int) -> bool:
    return job.order.decode.worker == reader and job.order.decode.epoch == epoch


def _code(text: str) -> Code:
    try:
        return Code(text)
    except ValueError:
        return Code.INTERNAL


def _refs(job: Job, positions: range) -> tuple[PageRef, ...]:
    size, names = job.block_tokens, job.hashes
    refs: list[PageRef] = []
    for position in positions:
        held, full = job.pages[position], position < len(names)
        if held.checksum is None:
            raise InvariantError(f"page {held.page} is announced before it is sealed")
        tokens = size if full else job.prompt_tokens - position * size
        name = names[position] if full else None
        ref = PageRef(position, held.page, held.generation, tokens, held.checksum, name)
        refs.append(ref)
    return tuple(refs)


def _ready(state: State, job: Job, refs: tuple[PageRef, ...], final: bool) -> PagesReady:
    """The first token rides in the last message alone."""
    first = job.first if final and job.sealed == job.prompt_pages else None
    return PagesReady(
        request=job.order.request,
        attempt=job.order.attempt,
        owner=state.me,
        ticket=job.ticket,
        chunk=job.messages,
        pages=refs,
        prompt_pages=job.prompt_pages,
        lease_s=state.limits.lease_s,
        first_token=first.token_ids[0] if first else None,
        first_finish=first.finish if first else None,
        cached_tokens=job.cached_tokens,
        first_logprobs=first.logprobs[0] if first and first.logprobs else None,
    )
