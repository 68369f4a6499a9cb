"""The decode core: reserve, take pages in, batch, generate, settle.

Pure: state + handle(event, now) -> actions. Late, repeated and unknown messages are counted and
change nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Never, assert_never

from services.decode.core import invariants
from services.decode.core.actions import Action, PublishBlocks, Reply
from services.decode.core.admission import Admission
from services.decode.core.borrowed import BorrowedLeases
from services.decode.core.desk import Desk
from services.decode.core.ending import Endings
from services.decode.core.events import (
    CancelArrived,
    Checksummed,
    DrainExpired,
    DrainStarted,
    Event,
    JobArrived,
    LeasesAnswered,
    OfferEnded,
    PagesArrived,
    PeerLost,
    PoolAnswered,
    PrefillFailedArrived,
    PullEnded,
    ReadEnded,
    ReleaseAcknowledged,
    ResendArrived,
    StepEnded,
    StepFailed,
    Tick,
    Verified,
)
from services.decode.core.fetching import Fetching
from services.decode.core.forecast import Forecast
from services.decode.core.inbox import Inbox
from services.decode.core.ledger import Ledger, part_of
from services.decode.core.memory import Memory
from services.decode.core.offering import Offering
from services.decode.core.preemption import Preemption
from services.decode.core.pulls import Pulls
from services.decode.core.rules import DecodeRules
from services.decode.core.sealing import Sealing
from services.decode.core.settlement import Settlement
from services.decode.core.stepping import Stepping
from shared.errors import Code
from shared.ids import Attempt, RequestId
from shared.kv.cache import PageCache
from shared.runtime.incarnations import Incarnations
from shared.wire.requests import Accepted, Acknowledged, Ended, LeaseKey, Refused


class DecodeMachine:
    """One decode worker. Feed every event in order; perform every action."""

    def __init__(self, rules: DecodeRules, cache: PageCache) -> None:
        self.desk = Desk(rules, cache)
        self.ledger = Ledger(rules)
        self.forecast = Forecast(self.desk)
        self.memory = Memory(self.desk, self.forecast if rules.forecast else None)
        self._gateways = Incarnations()
        self.pulls = Pulls()
        self.leases = BorrowedLeases(self.desk)
        self.sealing = Sealing(self.desk)
        self.offering = Offering(self.desk)
        self.fetching = Fetching(self.desk, self.memory, self.pulls, self.sealing)
        self.preemption = Preemption(self.desk, self.memory, self.forecast, self.offering)
        self.admission = Admission(
            self.desk, self.memory, self.preemption, self.fetching, self.ledger
        )
        self.endings = Endings(
            self.desk, self.memory, self.pulls, self.leases, self.ledger, self.forecast
        )
        self._settlement = Settlement(self.desk, self.memory, self.leases, self.endings)
        self._inbox = Inbox(self.desk, self.memory, self.pulls, self.sealing, self._settlement)
        self.stepping = Stepping(
            self.desk, self.memory, self.preemption, self.sealing, self.endings
        )

    @property
    def counts(self) -> Counter[str]:
        return self.desk.counts

    @property
    def idle(self) -> bool:
        """Nothing runs, waits, or is still on its way out."""
        busy = self.desk.sequences or self.admission.queued or self.leases.releasing
        return not (busy or self.stepping.running or self.pulls.reading or self.sealing.pending)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply one event; what is to be done, in order. Raises TypeError for an object that is
        not one."""
        self._apply(event, now)
        self._inbox.resume(now)
        self.admission.admit(now, between_steps=not self.stepping.running)
        self.stepping.start(now)
        changes = self.desk.cache.events()
        if changes:
            self.desk.out.append(PublishBlocks(changes))
        actions, self.desk.out = self.desk.out, []
        return actions

    def check(self) -> None:
        """Re-derive all invariants; raises AssertionError with the story of what broke."""
        invariants.check(self)

    def story(self, request: RequestId) -> str:
        """The life of a request here, one line an event."""
        sequence = self.desk.sequences.get(request)
        lines = self.ledger.story(request) if sequence is None else sequence.life
        state = (
            "not here" if sequence is None else f"{sequence.stage} attempt {sequence.key.attempt}"
        )
        return "\n".join([f"{request}: {state}; {self.stepping.story()}", *lines])

    def _apply(self, event: Event, now: float) -> None:
        match event:
            case StepEnded():
                self.stepping.ended(event, now)
            case JobArrived() | CancelArrived() | ResendArrived():
                self._from_gateway(event, now)
            case PagesArrived() | PrefillFailedArrived() | LeasesAnswered() | ReleaseAcknowledged():
                self._from_prefill(event, now)
            case PullEnded() | Verified():
                self._from_plane(event, now)
            case OfferEnded() | PoolAnswered() | ReadEnded():
                self._from_pool(event, now)
            case Checksummed():
                self.sealing.checksummed(event.seal, event.checksums)
            case StepFailed():
                self.stepping.failed(event, now)
            case PeerLost():
                self._peer_lost(event, now)
            case DrainStarted():
                self.admission.drain()
                self.offering.withdraw_all()
            case DrainExpired():
                self._hand_over(now)
            case Tick():
                self._tick(now)
            case _:
                _reject(event)

    # -- the gateway -----------------------------------------------------------------------

    def _from_gateway(self, event: JobArrived | CancelArrived | ResendArrived, now: float) -> None:
        match event:
            case JobArrived():
                self._job(event, now)
            case CancelArrived():
                self._cancel(event, now)
            case ResendArrived():
                self._resend(event)
            case _:
                assert_never(event)

    def _job(self, event: JobArrived, now: float) -> None:
        job = event.job
        rules = self.desk.rules
        if self._gateways.outdated(job.gateway, event.gateway_epoch, now):
            self.counts["fenced_epoch"] += 1
            late = Refused(Code.STALE.value, "a newer incarnation of this gateway has spoken")
            self.desk.out.append(Reply(event.reply, late))
            return
        known = self.desk.find(job.request, job.attempt)
        if job.epoch not in (0, rules.epoch):
            self.counts["fenced_epoch"] += 1
            gone = Refused(Code.WORKER_LOST.value, "the incarnation that this is for is gone")
            self.desk.out.append(Reply(event.reply, gone))
            return
        if known is not None or self.ledger.has_finished(LeaseKey(job.request, job.attempt)):
            self.counts["jobs_repeated"] += 1
            self.desk.out.append(Reply(event.reply, Accepted(rules.worker, rules.epoch)))
            return
        older = self.desk.sequences.get(job.request)
        newer = older is not None and older.job.attempt > job.attempt
        newer = newer or self.admission.waits_newer(job.request, job.attempt)
        if newer or self.ledger.has_ended(job.request, job.attempt):
            self.counts["fenced_attempt"] += 1
            stale = Refused(Code.STALE.value, "this attempt is over")
            self.desk.out.append(Reply(event.reply, stale))
            return
        if older is not None:
            self.endings.cancel(older, "newer_attempt", now)
        self.admission.withdraw(job.request, Attempt(job.attempt - 1))
        self.admission.arrived(event, now)

    def _cancel(self, event: CancelArrived, now: float) -> None:
        """Ends this attempt and older ones; also one that has not arrived yet."""
        cancel = event.cancel
        sequence = self.desk.sequences.get(cancel.request)
        if sequence is not None and sequence.job.attempt <= cancel.attempt:
            self.endings.cancel(sequence, "cancelled", now)
        self.admission.withdraw(cancel.request, cancel.attempt)
        self.ledger.end(cancel.request, cancel.attempt, now)
        self.desk.out.append(Reply(event.reply, Ended(cancel.request, cancel.attempt)))

    def _resend(self, event: ResendArrived) -> None:
        """The token log is authoritative: whatever was lost on the way is in it."""
        resend = event.resend
        sequence = self.desk.find(resend.request, resend.attempt)
        entry = (
            self.ledger.tokens_from(LeaseKey(resend.request, resend.attempt), resend.index)
            if sequence is None
            else part_of(sequence.entry(resend.index, None), resend.index)
        )
        unknown = Refused(Code.UNKNOWN_REQUEST.value, "nothing is known of this attempt")
        self.desk.out.append(Reply(event.reply, unknown if entry is None else entry))

    # -- prefill ---------------------------------------------------------------------------

    def _from_prefill(
        self,
        event: PagesArrived | PrefillFailedArrived | LeasesAnswered | ReleaseAcknowledged,
        now: float,
    ) -> None:
        match event:
            case PagesArrived():
                self._inbox.pages_arrived(event, now)
            case PrefillFailedArrived():
                self._prefill_failed(event, now)
            case LeasesAnswered():
                self._inbox.leases_answered(event, now)
            case ReleaseAcknowledged():
                self.leases.acknowledged(event.lease)
            case _:
                assert_never(event)

    def _prefill_failed(self, event: PrefillFailedArrived, now: float) -> None:
        failure = event.failure
        sequence = self.desk.find(failure.request, failure.attempt)
        if sequence is None or not sequence.awaits_prefill:
            self.counts["ignored"] += 1
            stale = Refused(Code.STALE.value, "this attempt waits for no pages here")
            self.desk.out.append(Reply(event.reply, stale))
            return
        self.desk.out.append(Reply(event.reply, Acknowledged()))
        self._inbox.lost(sequence, _code(failure.code), now)

    def _peer_lost(self, event: PeerLost, now: float) -> None:
        if event.role == "gateway":
            if event.replaced:
                self._gateways.replaced(event.worker, event.epoch, now)
            self._gateway_lost(event, now)
            return
        self.leases.peer_lost(event.worker, event.epoch)
        for sequence in list(self.desk.sequences.values()):
            handoff = sequence.handoff
            if handoff is None or handoff.owner.worker != event.worker:
                continue
            if handoff.owner.epoch <= event.epoch and not handoff.committed:
                self._inbox.lost(sequence, Code.WORKER_LOST, now)

    def _gateway_lost(self, event: PeerLost, now: float) -> None:
        """Nobody reads these tokens any more."""
        live = self.desk.sequences.values()
        for sequence in [*self.admission.waiting, *live]:
            job = sequence.job
            known = sequence.gateway_epoch
            if job.gateway != event.worker or (known is not None and known > event.epoch):
                continue
            self.admission.withdraw(job.request, job.attempt)
            if self.desk.find(job.request, job.attempt) is sequence:
                self.endings.cancel(sequence, "gateway_lost", now)

    # -- the pool, and reads -----------------------------------------------------------------

    def _from_plane(self, event: PullEnded | Verified, now: float) -> None:
        """A read from prefill, or one from the pool."""
        pull = self.pulls.get(event.pull, verifying=isinstance(event, Verified))
        pooled = pull is not None and pull.source is not None
        match event:
            case PullEnded() if pull is not None and pooled:
                self.fetching.pull_ended(pull, event, now)
            case PullEnded():
                self._inbox.pull_ended(event, now)
            case Verified() if pull is not None and pooled:
                self.fetching.verified(pull, event, now)
            case Verified():
                self._inbox.verified(event, now)
            case _:
                assert_never(event)

    def _from_pool(self, event: OfferEnded | PoolAnswered | ReadEnded, now: float) -> None:
        match event:
            case OfferEnded():
                self.offering.ended(event)
            case PoolAnswered():
                self.fetching.answered(event, now)
            case ReadEnded():
                self.desk.cache.close_read(event.read)
            case _:
                assert_never(event)

    # -- time ------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        for sequence in list(self.desk.sequences.values()):
            if now >= sequence.deadline_s:
                message = "the deadline passed on the decode worker"
                self.endings.fail(sequence, Code.DEADLINE_EXCEEDED, message, now)
        self.admission.expire(now)
        self._inbox.tick(now)
        self.leases.tick(now)
        self.ledger.sweep(now)
        self.forecast.tick(now)
        self.offering.sweep(now)

    def _hand_over(self, now: float) -> None:
        """The gateway replays what still runs on another worker."""
        self.admission.drain()
        for sequence in list(self.desk.sequences.values()):
            self.endings.fail(sequence, Code.DRAINING, "this worker is shutting down", now)


def _reject(event: Never) -> Never:
    """Statically unreachable; a caller without types meets TypeError."""
    raise TypeError(f"{type(event).__name__} is not an event of decode")


def _code(text: str) -> Code:
    try:
        return Code(text)
    except ValueError:
        return Code.TRANSFER_FAILED
