"""The door: which jobs are taken in. A job is accepted only with pages for its whole prompt.

Waiting is short and bounded in number, and so is being passed: rank is fixed at arrival.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from services.decode.core.actions import Reply
from services.decode.core.desk import Desk
from services.decode.core.events import JobArrived
from services.decode.core.fetching import Fetching
from services.decode.core.handoff import Handoff
from services.decode.core.ledger import Ledger
from services.decode.core.memory import Memory
from services.decode.core.preemption import Preemption
from services.decode.core.rules import pages_for
from services.decode.core.sequences import Sequence, Stage
from shared.errors import Code
from shared.ids import Attempt, RequestId
from shared.kv.hashing import BlockChain, CacheIdentity
from shared.wire.requests import TOP_PRIORITY, Accepted, DecodeJob, Refused

_MAX_REPLIES: Final = 8
_RETRY_S: Final = 1.0
BYPASS_LIMIT: Final = 8
"""Smaller jobs that may take pages before a job that is short of them."""
_TRIES: Final = 2 * BYPASS_LIMIT


@dataclass(slots=True)
class _Waiting:
    sequence: Sequence
    until_s: float
    replies: list[int] = field(default_factory=list)
    passed: int = 0


@dataclass(frozen=True, slots=True)
class _View:
    """All that decides whether anyone can be let in."""

    counts: tuple[int, ...]
    available: int
    between_steps: bool

    def no_better(self, other: _View) -> bool:
        """Whether nobody fits now if nobody did then."""
        pushes = self.between_steps and not other.between_steps
        return self.counts == other.counts and self.available <= other.available and not pushes


class Admission:
    """Jobs on their way in, and parked sequences on their way back."""

    def __init__(
        self,
        desk: Desk,
        memory: Memory,
        preemption: Preemption,
        fetching: Fetching,
        ledger: Ledger,
    ) -> None:
        self._desk = desk
        self._memory = memory
        self._preemption = preemption
        self._fetching = fetching
        self._ledger = ledger
        self._waiting: deque[_Waiting] = deque()
        self._order = 0
        self._stuck: _View | None = None
        """How things were when last nobody could be let in."""
        self.draining = False
        self.placement_sequence = 0

    @property
    def queued(self) -> int:
        """How many jobs hold nothing yet."""
        return len(self._waiting)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Jobs that hold nothing yet."""
        return tuple(entry.sequence for entry in self._waiting)

    def arrived(self, event: JobArrived, now: float) -> None:
        """Take a job in, or refuse it before anything ran. The answer may come later. A refusal
        ends the attempt: a late copy of the job must not be taken in for nobody."""
        job = event.job
        self.placement_sequence = max(self.placement_sequence, job.placement_sequence)
        for entry in self._waiting:
            same = entry.sequence.job
            if (same.request, same.attempt) == (job.request, job.attempt):
                self._join(entry, event.reply)
                return
        refusal = self._refusal(job)
        if refusal is not None:
            self._ledger.end(job.request, job.attempt, now)
            self._refuse((event.reply,), refusal)
            return
        self._order += 1
        sequence = self._sequence(event, now)
        until_s = min(now + self._desk.rules.reserve_wait_s, sequence.deadline_s)
        self._waiting.append(_Waiting(sequence, until_s, [event.reply]))

    def admit(self, now: float, *, between_steps: bool) -> None:
        """Let in whoever fits, in order of rank: who was preempted and who waits. A job that is
        short of pages may be passed by a few smaller ones; a preempted sequence is not."""
        if not self._waiting and not self._desk.parked:
            return
        view = self._view(between_steps)
        if self._stuck is not None and view.no_better(self._stuck):
            return
        self._stuck = None if self._let_in(now, between_steps) else view

    def _let_in(self, now: float, between_steps: bool) -> int:
        """How many were let in."""
        head: _Waiting | None = None
        tried = let_in = 0
        for sequence, entry in self._candidates():
            if entry is None:
                if not self._back(sequence, now, between_steps):
                    break
                let_in += 1
            elif len(self._desk.sequences) >= self._desk.rules.max_sequences:
                break
            elif self._reserve(sequence, now, between_steps and head is None):
                self._waiting.remove(entry)
                self._accept(entry, now)
                let_in += 1
                if head is not None:
                    head.passed += 1
            else:
                head = head or entry
                tried += 1
            if head is not None and (head.passed >= BYPASS_LIMIT or tried > _TRIES):
                break
        return let_in

    @property
    def most_passed(self) -> int:
        """How often a job that waits was passed by later ones."""
        return max((entry.passed for entry in self._waiting), default=0)

    def _view(self, between_steps: bool) -> _View:
        desk = self._desk
        counts = (len(desk.sequences), self._order, len(self._waiting), len(desk.sealing))
        return _View(counts, desk.cache.available, between_steps)

    def _candidates(self) -> list[tuple[Sequence, _Waiting | None]]:
        parked = [(s, None) for s in self._desk.sequences.values() if s.stage is Stage.PARKED]
        waiting = [(entry.sequence, entry) for entry in self._waiting]
        return sorted([*parked, *waiting], key=lambda one: one[0].rank)

    def _back(self, sequence: Sequence, now: float, between_steps: bool) -> bool:
        if not self._reserve(sequence, now, between_steps):
            return False
        self._fetching.come_back(sequence, now)
        return True

    def _reserve(self, sequence: Sequence, now: float, may_push: bool) -> bool:
        """Pages for a sequence, if need be by pushing out those of lower priority. Not while a
        block of its prompt is being sealed: that takes a moment and saves computing it again."""
        if self._memory.awaits_seal(sequence):
            return False
        if self._memory.reserve(sequence):
            return True
        if not may_push or not self._preemption.make_room(sequence, now):
            return False
        return self._memory.reserve(sequence)

    def expire(self, now: float) -> None:
        """Refuse who waited too long. Forecasts change with time: everyone is looked at again."""
        self._stuck = None
        for entry in [entry for entry in self._waiting if entry.until_s <= now]:
            self._waiting.remove(entry)
            full = len(self._desk.sequences) >= self._desk.rules.max_sequences
            code = Code.QUEUE_FULL if full else Code.KV_PAGES_EXHAUSTED
            job = entry.sequence.job
            self._ledger.end(job.request, job.attempt, now)
            self._turn_away(entry, Refused(code.value, "no room for this job now", _RETRY_S))

    def withdraw(self, request: RequestId, attempt: Attempt) -> None:
        """Jobs of this and older attempts are no longer wanted."""
        for entry in [e for e in self._waiting if e.sequence.job.request == request]:
            if entry.sequence.job.attempt <= attempt:
                self._waiting.remove(entry)
                self._turn_away(entry, Refused(Code.STALE.value, "the attempt was ended"))

    def waits_newer(self, request: RequestId, attempt: Attempt) -> bool:
        """Whether a newer attempt of this request waits."""
        jobs = [sequence.job for sequence in self.waiting]
        return any(job.request == request and job.attempt > attempt for job in jobs)

    def drain(self) -> None:
        """Refuse everyone from now on, also who waits."""
        self.draining = True
        while self._waiting:
            self._turn_away(self._waiting.popleft(), _draining())

    # -- one job ---------------------------------------------------------------------------

    def _accept(self, entry: _Waiting, now: float) -> None:
        sequence = entry.sequence
        job = sequence.job
        self._desk.sequences[job.request] = sequence
        reused = sequence.sealed
        sequence.cached_tokens = reused * sequence.block_tokens
        if sequence.handoff is None:
            sequence.stage = Stage.VERIFIED
        else:
            blocks = pages_for(sequence.prompt_tokens, sequence.block_tokens)
            sequence.handoff.wanted.update(range(reused, blocks))
            sequence.handoff.heard_s = now
        sequence.ready_s = now
        sequence.note(now, f"reserved {len(sequence.pages)} pages, {reused} of them cached")
        self._desk.trace(
            sequence,
            "decode.reserve",
            sequence.arrived_s,
            now,
            {
                "baton.pages.reserved": len(sequence.pages),
                "baton.pages.reused": reused,
                "baton.pages.free": self._desk.cache.available,
            },
        )
        self._desk.counts["jobs_accepted"] += 1
        accepted = Accepted(self._desk.rules.worker, self._desk.rules.epoch)
        self._desk.out.extend(Reply(reply, accepted) for reply in entry.replies)

    def _sequence(self, event: JobArrived, now: float) -> Sequence:
        job = event.job
        rules = self._desk.rules
        identity = CacheIdentity(
            namespace=job.namespace,
            model_digest=rules.model_digest,
            tokenizer_digest=rules.tokenizer_digest,
            dtype=rules.dtype,
            block_tokens=rules.block_tokens,
        )
        sequence = Sequence(
            job=job,
            order=self._order,
            arrived_s=now,
            deadline_s=now + job.deadline_s,
            block_tokens=rules.block_tokens,
            chain=BlockChain(identity),
            tokens=list(job.tokens),
            handoff=None if job.prefill is None else Handoff(job.prefill),
            gateway_epoch=event.gateway_epoch,
            ticket=event.ticket,
            virtual_s=now - rules.point_s * job.priority,
        )
        sequence.note(now, f"attempt {job.attempt} of {len(job.tokens)} tokens arrived")
        return sequence

    def _join(self, entry: _Waiting, reply: int) -> None:
        """The gateway repeats a job that still waits: both get the one answer."""
        if len(entry.replies) < _MAX_REPLIES:
            entry.replies.append(reply)
        else:
            refused = Refused(Code.QUEUE_FULL.value, "this job waits already", _RETRY_S)
            self._desk.out.append(Reply(reply, refused))

    def _turn_away(self, entry: _Waiting, refused: Refused) -> None:
        self._refuse(tuple(entry.replies), refused)

    def _refuse(self, replies: tuple[int, ...], refused: Refused) -> None:
        self._desk.counts[f"refused_{refused.code}"] += 1
        self._desk.out.extend(Reply(reply, refused) for reply in replies)

    def _refusal(self, job: DecodeJob) -> Refused | None:
        """Why this job can never run here, or None."""
        rules = self._desk.rules
        if self.draining:
            return _draining()
        if job.deadline_s <= 0:
            return Refused(Code.DEADLINE_EXCEEDED.value, "no time is left")
        if not job.tokens or job.sampling.max_tokens < 1 or job.first_index < 0:
            return Refused(Code.INVALID_PARAMETER.value, "the job has nothing to do")
        if abs(job.priority) > TOP_PRIORITY:
            return Refused(Code.INVALID_PARAMETER.value, "the priority is out of range")
        if min(job.tokens) < 0 or max(job.tokens) >= rules.vocab_size:
            return Refused(Code.INVALID_PARAMETER.value, "a token is outside the vocabulary")
        longest = len(job.tokens) + job.sampling.max_tokens
        if longest > rules.context_tokens:
            return Refused(Code.CONTEXT_LENGTH_EXCEEDED.value, "longer than the model's context")
        if pages_for(longest - 1, rules.block_tokens) > self._desk.pages:
            return Refused(Code.KV_PAGES_EXHAUSTED.value, "this job can never fit here")
        if len(self._waiting) >= rules.queue_limit:
            return Refused(Code.QUEUE_FULL.value, "too many jobs wait here", _RETRY_S)
        return None


def _draining() -> Refused:
    return Refused(Code.DRAINING.value, "this worker is shutting down", _RETRY_S)
