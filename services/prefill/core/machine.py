"""A prefill worker as a pure machine: events in, actions out, no clock and no I/O.

Puts the parts together: the door and waiting room, the pool, the engine's turn, the handoff.
Late, repeated and unknown messages are counted and change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Never

from services.prefill.core import admission, fetching, handoff
from services.prefill.core import events as on
from services.prefill.core.actions import Action, Answer, PublishBlocks, Reply
from services.prefill.core.closing import close
from services.prefill.core.compute import Compute
from services.prefill.core.jobs import Job, Jobs, Phase
from services.prefill.core.lending import Lending
from services.prefill.core.state import Limits, State
from shared.errors import Code
from shared.ids import Generation, PageId, RequestId
from shared.kv.cache import PageCache
from shared.kv.hashing import CacheIdentity
from shared.kv.invariants import require
from shared.wire.requests import (
    Acknowledged,
    CancelRequest,
    Ended,
    LeasesRenewed,
    Refused,
    ResendTokens,
    TokenEntry,
    WorkerRef,
)
from shared.wire.workers import MOST_READING, WorkerLoad, WorkerLost


def _was_for(job: Job, lost: WorkerLost) -> bool:
    """Whether the job's tokens or pages were meant for this incarnation."""
    order = job.order
    if lost.role == "decode":
        return order.decode.worker == lost.worker and order.decode.epoch <= lost.epoch
    known = job.gateway_epoch is None or job.gateway_epoch <= lost.epoch
    return lost.role == "gateway" and order.gateway == lost.worker and known


def _reject(event: Never) -> Never:
    """Statically unreachable; a caller without types meets TypeError."""
    raise TypeError(f"not an event of prefill: {type(event).__name__}")


class Machine:
    """One incarnation of a prefill worker. `cache` belongs to it from now on."""

    def __init__(
        self, me: WorkerRef, limits: Limits, identity: CacheIdentity, cache: PageCache
    ) -> None:
        require(limits.chunk_tokens >= limits.block_tokens, "a step holds less than a block")
        jobs = Jobs(limits.past_limit)
        self._state = State(me, limits, identity, cache, jobs)
        self._compute = Compute(self._state)
        self._lending = Lending(self._state)

    # -- events ----------------------------------------------------------------------------

    def handle(self, event: on.Event, now: float) -> list[Action]:
        """Take in one event; the actions it brings about, in order."""
        self._take_in(event, now)
        fetching.resume(self._state, now)
        admission.admit(self._state, now)
        self._compute.begin(now)
        actions, self._state.out = self._state.out, []
        changes = self._state.cache.events()
        if changes:
            actions.append(PublishBlocks(changes))
        return actions

    def _take_in(self, event: on.Event, now: float) -> None:
        state = self._state
        match event:
            case on.JobArrived() | on.CancelArrived() | on.ResendArrived():
                state.out.append(Reply(event.call, self._answer_gateway(event, now)))
            case on.RenewArrived() | on.ReleaseArrived():
                state.out.append(Reply(event.call, self._answer_reader(event, now)))
            case on.LookupArrived():
                state.out.append(Reply(event.call, self._lending.asked(event, now)))
            case on.LoanReturned():
                state.out.append(Reply(event.call, self._lending.returned(event)))
            case on.PoolFound():
                fetching.found(state, event, now)
            case on.PoolMissed():
                fetching.missed(state, event, now)
            case on.PullEnded():
                fetching.pull_ended(state, event, now)
            case on.StepEnded():
                self._compute.step_ended(event, now)
            case on.PagesSummed():
                self._compute.pages_summed(event, now)
            case on.StepFailed():
                self._compute.failed(event, now)
            case on.PagesAcknowledged():
                handoff.acknowledged(state, event, now)
            case on.PagesRefused():
                handoff.refused(state, event, now)
            case on.OfferEnded():
                handoff.offer_ended(state, event)
            case on.ReadEnded():
                state.cache.close_read(event.read)
            case on.PeerLost():
                self._peer_lost(event.lost, now)
            case on.DrainStarted():
                state.draining = True
            case on.DrainExpired():
                self._give_up(now)
            case on.Tick():
                self._tick(now)
            case _:
                _reject(event)

    def open_read(
        self, ticket: str, pages: Sequence[tuple[PageId, Generation]], now: float
    ) -> int | None:
        """A peer wants to read: a read id, to be closed with `ReadEnded`, or None to refuse."""
        read = self._state.cache.open_read(ticket, pages, now)
        self._state.counts["reads_opened" if read is not None else "fenced_generation"] += 1
        return read

    # -- answers ---------------------------------------------------------------------------

    def _answer_gateway(
        self, event: on.JobArrived | on.CancelArrived | on.ResendArrived, now: float
    ) -> Answer:
        match event:
            case on.JobArrived():
                return admission.arrive(self._state, event, now)
            case on.CancelArrived():
                return self._cancel(event.cancel, now)
            case on.ResendArrived():
                return self._resend(event.resend)

    def _answer_reader(self, event: on.RenewArrived | on.ReleaseArrived, now: float) -> Answer:
        if isinstance(event, on.RenewArrived):
            return LeasesRenewed(handoff.renew(self._state, event.renew, now))
        handoff.release(self._state, event.release, now)
        return Acknowledged()

    def _cancel(self, cancel: CancelRequest, now: float) -> Ended:
        """This attempt and older ones are over, also when they were never here. Pages that the
        running step works on follow at its end."""
        job = self._state.jobs.live.get(cancel.request)
        if job is not None and job.order.attempt <= cancel.attempt:
            close(self._state, job, now, "cancelled")
        self._state.jobs.remember(cancel.request, cancel.attempt, None)
        return Ended(cancel.request, cancel.attempt)

    def _resend(self, resend: ResendTokens) -> TokenEntry | Refused:
        """The first token again, or a sign of life."""
        job = self._state.jobs.find(resend.request, resend.attempt)
        past = self._state.jobs.past(resend.request)
        first = job.first if job is not None else past.first if past is not None else None
        if first is not None and first.attempt == resend.attempt and first.index >= resend.index:
            return first
        if job is None:
            return Refused(Code.UNKNOWN_REQUEST, "no such attempt here")
        return TokenEntry(resend.request, resend.attempt, resend.index, (), None)

    # -- time, peers, drain ----------------------------------------------------------------

    def _tick(self, now: float) -> None:
        """All leases, all deadlines: neither are in order."""
        state = self._state
        handoff.sweep(state, now)
        self._lending.sweep()
        admission.regroup(state, now)
        for job in tuple(state.jobs.live.values()):
            handed = job.phase is Phase.HANDED
            if now >= job.deadline_s + (state.limits.grace_s if handed else 0.0):
                close(state, job, now, "expired", None if handed else Code.DEADLINE_EXCEEDED)

    def _peer_lost(self, lost: WorkerLost, now: float) -> None:
        """A decode worker or gateway died: what was for it has no use. (A request that goes on
        elsewhere comes back as another attempt and finds the sealed blocks in the cache.)"""
        if lost.role == "gateway" and lost.cause == "replaced":
            self._state.gateways.replaced(lost.worker, lost.epoch, now)
        for job in tuple(self._state.jobs.live.values()):
            if _was_for(job, lost):
                close(self._state, job, now, "lost")
        handoff.pool_lost(self._state, lost)
        self._lending.reader_lost(lost)

    def _give_up(self, now: float) -> None:
        self._state.draining = True
        for job in tuple(self._state.jobs.live.values()):
            handed = job.phase is Phase.HANDED
            close(self._state, job, now, "failed", None if handed else Code.DRAINING)
        handoff.end_offers(self._state)
        self._lending.end_all()

    # -- views -----------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing is running and nobody holds anything."""
        state = self._state
        return not (state.jobs.live or state.jobs.leaving or state.offers or self._lending)

    @property
    def draining(self) -> bool:
        return self._state.draining

    @property
    def cache(self) -> PageCache:
        """For views only; changes go through events."""
        return self._state.cache

    @property
    def counters(self) -> Counter[str]:
        """Facts since the start; they only grow."""
        return self._state.counts

    def load(self, now: float) -> WorkerLoad:
        """What the scheduler is told."""
        state = self._state
        step_left_s, computing = self._compute.left_s(now)
        queued = state.jobs.in_phase(Phase.QUEUED)
        running = state.jobs.in_phase(Phase.READY) + state.jobs.in_phase(Phase.FETCHING)
        return WorkerLoad(
            queued_requests=len(queued),
            queued_tokens=sum(job.left_tokens for job in (*queued, *running)),
            running_sequences=len(running),
            work_left_s=step_left_s + admission.work_left_s(state, computing),
            pages_total=state.pages,
            pages_free=state.cache.available,
            placement_sequence=state.placement_sequence,
            reading=tuple(islice(fetching.reading(state), MOST_READING)),
        )

    def accounting(self) -> dict[str, object]:
        """The outside view that proves that nothing leaks."""
        counts = self._state.cache.counts()
        return {
            "held_pages": counts.total - counts.free - counts.cached,
            "leases": counts.leases,
            "requests": len(self._state.jobs.live) + len(self._state.jobs.leaving),
            "open_reads": counts.open_reads,
            "quarantined": counts.quarantined,
            "pages": {
                "free": counts.free,
                "referenced": counts.referenced,
                "cached": counts.cached,
                "leased": counts.leased,
                "quarantined": counts.quarantined,
            },
        }

    def story(self, request: RequestId) -> str:
        """The life of a request here, in words."""
        return self._state.diary.story(request)

    def check(self) -> None:
        """Re-derive the invariants; raises InvariantError with the stories of those involved."""
        state = self._state
        state.cache.check()
        held: Counter[PageId] = Counter()
        for job in (*state.jobs.live.values(), *state.jobs.leaving.values()):
            story = state.diary.story(job.order.request)
            held.update(page.page for page in job.pages)
            whole = 0 if job.phase is Phase.QUEUED else job.prompt_pages
            require(job.ended or len(job.pages) == whole, f"pages of {job.key}:\n{story}")
            require(job.ended != (job.key not in state.jobs.leaving), f"{job.key}:\n{story}")
            require(job.shared <= job.sealed or job.ended, f"announced unsealed:\n{story}")
            leased = state.cache.has_lease(job.lease)
            require(leased == (job.shared > 0 and not job.ended), f"lease of {job.key}:\n{story}")
        require(held == Counter(state.cache.references()), "references without a job")
        for key, mate in state.followers.items():
            both = [state.jobs.find(*one) for one in (key, mate)]
            ok = all(job is not None and job.phase is Phase.FETCHING for job in both)
            require(ok, f"{key} waits for nobody's fetch")
        for key in state.offers:
            require(state.cache.has_lease(handoff.offer_lease(key)), f"offer {key} has no lease")
        self._lending.check()
        expected = len(state.offers) + sum(job.shared > 0 for job in state.jobs.live.values())
        expected += len(self._lending)
        require(state.cache.counts().leases == expected, "a lease without a job or offer")
