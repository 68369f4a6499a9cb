"""The gateway's core: every open client request, from admission to its one ending.

`handle(event, now)` is total. Late, repeated and unknown messages are counted and change nothing.
Knows no clock, no bus, no text.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, assert_never

from services.gateway.core import placing, recovery, watching
from services.gateway.core.actions import (
    Action,
    Cancel,
    Count,
    Deliver,
    EndAttempt,
    Fail,
    ReportEnd,
)
from services.gateway.core.admission import Admission, Limits
from services.gateway.core.events import (
    AttemptFailed,
    BusReturned,
    CancelAnswered,
    CancelUnanswered,
    Closed,
    EndUnsent,
    Event,
    JobAnswered,
    JobUnanswered,
    Opened,
    Placed,
    PlaceUnanswered,
    ResendAnswered,
    ResendUnanswered,
    Role,
    Silence,
    Ticked,
    TokensArrived,
    WorkerDied,
)
from services.gateway.core.ordering import TokenOrder
from services.gateway.core.request import Holder, Policy, Request
from services.gateway.core.settling import Settlement
from shared.errors import Code
from shared.ids import Attempt, RequestId, WorkerId
from shared.runtime.leader import Leader
from shared.wire.requests import Accepted, PlacementEnded, Refused, TokenChunk

_REMEMBERED: Final = 1_024


class GatewayMachine:
    """State and rules of all requests of one gateway."""

    def __init__(self, gateway: WorkerId, policy: Policy, limits: Limits) -> None:
        self._gateway = gateway
        self._policy = policy
        self._open: dict[RequestId, Request] = {}
        self._ended: OrderedDict[RequestId, tuple[str, ...]] = OrderedDict()
        self._admission = Admission(limits)
        self._settlement = Settlement(policy.settle_tries)
        self._grace_until_s = float("-inf")
        self._leader = Leader()

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def waiting_tokens(self) -> int:
        return self._admission.waiting_tokens

    @property
    def open_cancels(self) -> int:
        return self._settlement.open_cancels

    @property
    def busy(self) -> bool:
        """There is something that time alone can move."""
        return bool(self._open) or self._settlement.open_cancels > 0

    def story(self, request: RequestId) -> str:
        """The life of an open or recently ended request."""
        found = self._open.get(request)
        lines = self._ended.get(request, ()) if found is None else tuple(found.story)
        return "\n".join(lines) or f"{request}: unknown"

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply one event. Raises TypeError for an object that is not one."""
        if not isinstance(event, Event):
            raise TypeError(f"{type(event).__name__} is not an event of the gateway")
        actions = self._handle(event, now)
        for action in actions:
            match action:
                case Deliver(request=request, finish=finish):
                    self._admission.started(request)
                    if finish is not None:
                        self._forget(request, now)
                case Cancel():
                    self._settlement.sent(action)
                case Fail(request=request):
                    self._forget(request, now)
        return actions

    def _handle(self, event: Event, now: float) -> list[Action]:
        match event:
            case TokensArrived(chunk=chunk):
                return self._tokens(chunk, now)
            case Opened():
                return self._opened(event, now)
            case Closed():
                return self._closed(event, now)
            case Placed():
                return self._placed(event, now)
            case PlaceUnanswered():
                return self._place_unanswered(event, now)
            case JobAnswered():
                return self._job_answered(event, now)
            case JobUnanswered():
                return self._job_unanswered(event, now)
            case AttemptFailed():
                return self._attempt_failed(event, now)
            case ResendAnswered():
                return self._resend_answered(event, now)
            case ResendUnanswered():
                return self._resend_unanswered(event, now)
            case WorkerDied():
                return self._worker_died(event, now)
            case _:
                return self._settle_or_tick(event, now)

    def _settle_or_tick(
        self,
        event: CancelAnswered | CancelUnanswered | EndUnsent | BusReturned | Ticked,
        now: float,
    ) -> list[Action]:
        match event:
            case CancelAnswered():
                self._settlement.answered(event.request, event.attempt, event.worker)
                return []
            case CancelUnanswered():
                key = (event.request, event.attempt, event.worker)
                self._settlement.unanswered(key, event.silence, self._grace(now), now)
                return []
            case EndUnsent(message=message):
                self._settlement.unsent(message)
                return []
            case BusReturned():
                return self._bus_returned(now)
            case Ticked():
                return self._ticked(now)
            case _:
                assert_never(event)

    # -- the client's side ---------------------------------------------------------------

    def _opened(self, event: Opened, now: float) -> list[Action]:
        if event.request in self._open or event.request in self._ended:
            return [Count("ignored_event", "opened_twice")]
        overload = self._admission.admit(event.request, len(event.prompt), event.choices)
        if overload is not None:
            self._remember(event.request, (f"{now:.3f} not admitted: {overload.message}",))
            return [Fail(event.request, overload.code, overload.message, overload.retry_after_s)]
        request = Request(
            id=event.request,
            prompt=event.prompt,
            sampling=event.sampling,
            route=event.route,
            deadline_s=event.deadline_s,
            opened_s=now,
            order=TokenOrder(event.sampling.max_tokens, told=event.sampling.logprobs is not None),
            no_queue=event.no_queue,
            near=event.near,
            priority=event.priority,
            hints=event.hints,
        )
        self._open[request.id] = request
        actions = placing.start_attempt(request, "first", now)
        return actions + placing.place(request, self._policy, now)

    def _closed(self, event: Closed, now: float) -> list[Action]:
        request = self._open.get(event.request)
        if request is None:
            return [Count("ignored_event", "closed_twice")]
        outcome = "finished" if event.cause == "stop" else "cancelled"
        actions = recovery.end_attempt(request, outcome, event.cause, (), now)
        self._forget(event.request, now)
        return actions

    def _forget(self, request_id: RequestId, now: float) -> None:
        request = self._open.pop(request_id, None)
        if request is not None:
            self._admission.ended(request_id, now)
            self._remember(request_id, tuple(request.story))

    def _remember(self, request: RequestId, story: tuple[str, ...]) -> None:
        self._ended[request] = story
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    # -- the scheduler's side ------------------------------------------------------------

    def _current(self, request: RequestId, attempt: Attempt) -> Request | None:
        found = self._open.get(request)
        return found if found is not None and found.attempt == attempt else None

    def _placed(self, event: Placed, now: float) -> list[Action]:
        request = self._current(event.request, event.attempt)
        answer = event.answer
        if request is None:
            if isinstance(answer, Refused):
                return []
            return [ReportEnd(PlacementEnded(event.request, event.attempt, "stale"))]
        if request.placement is not None:
            return [Count("ignored_event", "placed_twice")]
        if isinstance(answer, Refused):
            return recovery.refuse_placement(request, answer, self._policy, now)
        ours = (answer.request, answer.attempt) == (event.request, event.attempt)
        if not ours or not self._leader.accepts(answer.leader_epoch, now):
            silence = PlaceUnanswered(event.request, event.attempt, Silence.BROKEN)
            return [Count("fenced", "leader_epoch"), *self._place_unanswered(silence, now)]
        return placing.accept_placement(request, answer, self._policy, self._gateway, now)

    def _place_unanswered(self, event: PlaceUnanswered, now: float) -> list[Action]:
        request = self._current(event.request, event.attempt)
        if request is None or request.placement is not None:
            return []
        return recovery.scheduler_silent(request, event.silence, self._policy, now)

    # -- the workers' side ---------------------------------------------------------------

    def _holder(self, request: RequestId, attempt: Attempt, role: Role) -> Holder | None:
        found = self._current(request, attempt)
        return None if found is None else found.holders.get(role)

    def _job_answered(self, event: JobAnswered, now: float) -> list[Action]:
        request = self._current(event.request, event.attempt)
        holder = self._holder(event.request, event.attempt, event.role)
        if request is None or holder is None:
            return []
        answer = event.answer
        if isinstance(answer, Refused) and answer.code == Code.STALE:
            return watching.knows_nothing(request, holder, self._policy, now)
        if isinstance(answer, Refused):
            holders = request.holders
            request.holders = {role: held for role, held in holders.items() if held is not holder}
            return recovery.refuse_attempt(request, answer, holder.ref, self._policy, now)
        if not _same_incarnation(holder, answer):
            return watching.lost(request, holder, self._policy, now)
        return placing.accept_job(request, event.role, self._policy, self._gateway, now)

    def _job_unanswered(self, event: JobUnanswered, now: float) -> list[Action]:
        request = self._current(event.request, event.attempt)
        holder = self._holder(event.request, event.attempt, event.role)
        if request is None or holder is None or holder.accepted:
            return []
        grace = self._grace(now)
        return watching.job_silent(request, holder, event.silence, self._policy, now, grace)

    def _tokens(self, chunk: TokenChunk, now: float) -> list[Action]:
        actions: list[Action] = []
        for entry in chunk.entries:
            request = self._open.get(entry.request)
            if request is None:
                why = "ended" if entry.request in self._ended else "unknown"
                actions.append(Count("stale_chunk", why))
            elif entry.attempt != request.attempt:
                actions.append(Count("stale_chunk", "stale"))
            elif (holder := request.sender(chunk.worker, chunk.epoch)) is None:
                actions.append(Count("stale_chunk", "fenced"))
            else:
                actions += self._stream(
                    request,
                    holder,
                    watching.take_tokens(request, holder, entry, now),
                    entry.finish,
                    now,
                )
        return actions

    def _stream(
        self, request: Request, holder: Holder, actions: list[Action], said: str | None, now: float
    ) -> list[Action]:
        """Close the attempt when its last token was delivered. A worker that did not say so
        itself is told."""
        finish = request.order.finish
        if finish is None or not any(isinstance(action, Deliver) for action in actions):
            return actions
        if said is None:
            return [*recovery.end_attempt(request, "finished", finish, (), now), *actions]
        request.note(now, f"finished ({finish}) by {holder.role} {holder.ref.worker}")
        ended = EndAttempt(request.id, request.attempt, "finished")
        return [ended, recovery.report(request, "finished"), *actions]

    def _attempt_failed(self, event: AttemptFailed, now: float) -> list[Action]:
        failure = event.failure
        request = self._current(failure.request, failure.attempt)
        holder = None if request is None else request.sender(failure.worker, failure.epoch)
        if request is None or holder is None:
            return [Count("ignored_event", "job_failed")]
        return watching.gave_up(request, holder, failure, self._policy, now)

    def _resend_answered(self, event: ResendAnswered, now: float) -> list[Action]:
        request = self._current(event.request, event.attempt)
        holder = self._holder(event.request, event.attempt, event.role)
        if request is None or holder is None:
            return []
        answer = event.answer
        if isinstance(answer, Refused):
            return watching.knows_nothing(request, holder, self._policy, now)
        watching.heard(request, holder, self._policy, now)
        if (answer.request, answer.attempt) != (event.request, event.attempt):
            return [Count("stale_chunk", "stale")]
        actions = watching.take_tokens(request, holder, answer, now)
        return self._stream(request, holder, actions, answer.finish, now)

    def _resend_unanswered(self, event: ResendUnanswered, now: float) -> list[Action]:
        request = self._current(event.request, event.attempt)
        holder = self._holder(event.request, event.attempt, event.role)
        if request is None or holder is None:
            return []
        grace = self._grace(now)
        return watching.silent(request, holder, event.silence, self._policy, now, grace)

    def _worker_died(self, event: WorkerDied, now: float) -> list[Action]:
        lost = event.lost
        if not self._leader.accepts(lost.leader_epoch, now):
            return [Count("fenced", "leader_epoch")]
        if lost.role == "scheduler":
            return self._leader_changed(now)
        actions: list[Action] = []
        for request in list(self._open.values()):
            actions += watching.declared_dead(request, lost, self._policy, now, self._grace(now))
        if self._grace(now):
            return actions
        self._settlement.worker_died(lost.worker)
        # Nobody is left there to confirm a cancel.
        return [a for a in actions if not isinstance(a, Cancel) or a.worker != lost.worker]

    def _leader_changed(self, now: float) -> list[Action]:
        """What the old leader was asked is asked again at once."""
        actions: list[Action] = []
        for request in self._open.values():
            if request.placement is None:
                actions += placing.place(request, self._policy, now)
        return actions

    # -- time and the bus ----------------------------------------------------------------

    def _grace(self, now: float) -> bool:
        """Our connection has just come back: a peer's silence proves nothing yet."""
        return now < self._grace_until_s

    def _bus_returned(self, now: float) -> list[Action]:
        self._grace_until_s = now + self._policy.reconnect_grace_s
        for request in self._open.values():
            if request.place_due_s is not None:
                request.place_due_s = now
            watching.ask_soon(request, self._policy, now)
        return self._settlement.bus_returned() + self._ticked(now)

    def _ticked(self, now: float) -> list[Action]:
        actions = self._settlement.due(now)
        for request in list(self._open.values()):
            actions += self._watch(request, now)
        return actions

    def _watch(self, request: Request, now: float) -> list[Action]:
        policy = self._policy
        if now >= request.deadline_s:
            message = "the deadline has passed"
            return recovery.give_up(request, Code.DEADLINE_EXCEEDED, message, now)
        if request.place_due_s is not None and now >= request.place_due_s:
            return placing.place(request, policy, now)
        overdue = watching.handoff_overdue(request, policy, now)
        if overdue:
            return overdue
        jobs = placing.due_jobs(request, policy, self._gateway, now)
        return [*jobs, *watching.asks(request, policy, now)]

    def check(self) -> None:
        """Re-derive the invariants; raise AssertionError with the story of the culprit."""
        self._admission.check()
        if self._admission.open_requests != len(self._open):
            raise AssertionError("admission and open requests disagree")
        for request in self._open.values():
            request.order.check()
            if request.order.finish is not None:
                raise AssertionError(f"ended but open:\n{self.story(request.id)}")
            if request.holders and request.placement is None:
                raise AssertionError(f"held without placement:\n{self.story(request.id)}")
            if request.placement is None and request.attempt < 1:
                raise AssertionError(f"never begun:\n{self.story(request.id)}")


def _same_incarnation(holder: Holder, answer: Accepted) -> bool:
    return (answer.worker, answer.epoch) == (holder.ref.worker, holder.ref.epoch)
