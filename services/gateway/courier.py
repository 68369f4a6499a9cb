"""Between the core and the bus: carries out the core's actions, feeds answers back.

Owns the tasks of open questions and the clock's tick. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, assert_never

from services.gateway.capture import Capture
from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.machine import GatewayMachine
from services.gateway.metrics import GatewayMetrics
from services.gateway.refusals import Refusal
from services.gateway.session import Session
from shared.bus.bus import Bus, Delivery
from shared.bus.headers import Headers
from shared.clock import Clock
from shared.errors import (
    BatonError,
    BusTimeout,
    BusUnavailable,
    Code,
    NoResponder,
    PayloadTooLarge,
)
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.telemetry.jobs import hop
from shared.telemetry.log import Log
from shared.telemetry.trace import Kind, Tracer, Value
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import (
    Accepted,
    Ended,
    JobFailed,
    Placement,
    Refused,
    TokenChunk,
    TokenEntry,
)
from shared.wire.workers import WorkerLost

TICK_S: Final = 0.1
ANSWER_S: Final = 2.0
"""How long a peer may take for one answer; nothing that it does before answering is slow."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the courier works with."""

    gateway: WorkerId
    epoch: Callable[[], Epoch]
    """Of this incarnation: workers end its jobs when it is declared dead. 0: none yet."""
    bus: Bus
    clock: Clock
    tasks: asyncio.TaskGroup
    log: Log
    tracer: Tracer
    metrics: GatewayMetrics
    capture: Capture


class Courier:
    """The shell around the core, for all requests of one gateway."""

    def __init__(self, machine: GatewayMachine, around: Surroundings) -> None:
        self._machine = machine
        self._around = around
        self._sessions: dict[RequestId, Session] = {}
        self._work = asyncio.Event()
        self.quiet = asyncio.Event()
        """Set while no client is served."""
        self.quiet.set()

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Listen to workers and scheduler, and let time pass."""
        around = self._around
        bus = around.bus
        await bus.subscribe(subjects.tokens(around.gateway), self._from_worker, concurrency=1)
        await bus.subscribe(subjects.LOST, self._from_scheduler, concurrency=1)
        bus.on_reconnect(lambda: self._feed(ev.BusReturned()))
        around.tasks.create_task(self._tick(), name="gateway-tick")

    def open(self, session: Session, opened: ev.Opened) -> None:
        """Hand a request to the core; its session hears everything from now on."""
        self._sessions[session.id] = session
        self.quiet.clear()
        self._feed(opened)
        self._work.set()

    def leave(self, session: Session, cause: str) -> None:
        """Nobody listens to the session any more. If it had not ended, all work stops."""
        if not session.ended:
            self._around.metrics.cancels.labels(session.phase, cause).inc()
            self._feed(ev.Closed(session.id, cause))
        self._sessions.pop(session.id, None)
        for span in session.attempts.values():
            span.end()
        if not self._sessions:
            self.quiet.set()

    def fail_all(self, refusal: Refusal) -> None:
        """End every open request with an error: the process is about to go."""
        for session in list(self._sessions.values()):
            if not session.ended:
                self._feed(ev.Closed(session.id, refusal.code.value))
                session.fail(refusal)

    # -- what comes in -------------------------------------------------------------------

    async def _from_worker(self, delivery: Delivery) -> None:
        match delivery.message:
            case TokenChunk() as chunk:
                self._feed(ev.TokensArrived(chunk))
            case JobFailed() as failure:
                self._feed(ev.AttemptFailed(failure))
            case _:
                self._around.metrics.ignored.labels("unexpected_message").inc()

    async def _from_scheduler(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, WorkerLost):
            self._feed(ev.WorkerDied(delivery.message))

    async def _tick(self) -> None:
        while True:
            if not self._machine.busy:
                self._work.clear()
                await self._work.wait()
            await asyncio.sleep(TICK_S)
            self._feed(ev.Ticked())

    def _feed(self, event: ev.Event) -> None:
        for action in self._machine.handle(event, self._around.clock.now()):
            self._perform(action)

    # -- what goes out -------------------------------------------------------------------

    def _perform(self, action: act.Action) -> None:
        match action:
            case act.Deliver():
                self._deliver(action)
            case act.StartAttempt() | act.EndAttempt() | act.ShowPlacement():
                self._show(action)
            case act.Place(message=message):
                self._spawn(self._place(action), f"place {message.request}")
            case act.SendJob(message=message):
                self._spawn(self._send_job(action), f"job {message.request}")
            case act.AskResend(message=message):
                self._spawn(self._ask_resend(action), f"resend {message.request}")
            case act.Cancel(message=message):
                self._work.set()
                self._spawn(self._cancel(action), f"cancel {message.request}")
            case act.ReportEnd(message=message):
                self._spawn(self._report_end(action), f"ended {message.request}")
            case act.Fail():
                self._fail(action)
            case act.Count():
                self._count(action)
            case _:
                assert_never(action)

    def _deliver(self, action: act.Deliver) -> None:
        session = self._sessions.get(action.request)
        if session is None:
            return
        before_s, tokens = session.last_token_s, session.completion_tokens
        try:
            session.deliver(
                action.token_ids,
                action.finish,
                action.cached_tokens,
                action.logprobs,
                action.home,
            )
        except BatonError as error:
            self._around.log.failure("gateway.token_refused", error, request=action.request)
            self._feed(ev.Closed(action.request, "internal"))
            session.fail(Refusal(Code.INTERNAL, "the answer could not be read"))
            return
        if before_s is not None and session.last_token_s is not None:
            fresh = session.completion_tokens - tokens
            self._around.metrics.went_on(
                session.route,
                session.last_token_s - before_s,
                fresh,
                second=tokens == 1,
                trace_id=session.root.context.trace_id,
            )
        if session.stopped and action.finish is None:
            self._feed(ev.Closed(action.request, "stop"))

    def _show(self, action: act.StartAttempt | act.EndAttempt | act.ShowPlacement) -> None:
        match action:
            case act.StartAttempt(request=request, attempt=attempt, cause=cause):
                self._around.metrics.attempts.labels(cause).inc()
                session = self._sessions.get(request)
                if session is not None:
                    self._start_attempt(session, attempt, cause)
            case act.EndAttempt(request=request, attempt=attempt, outcome=outcome):
                session = self._sessions.get(request)
                if session is not None and attempt in session.attempts:
                    good = outcome in ("finished", "cancelled")
                    session.attempts[attempt].end(None if good else outcome)
            case act.ShowPlacement(placement=placement):
                session = self._sessions.get(placement.request)
                if session is not None:
                    session.placed(placement)
                    self._note(session, placement.attempt, "placed", placement.route)
            case _:
                assert_never(action)

    def _start_attempt(self, session: Session, attempt: Attempt, cause: str) -> None:
        last = session.attempts.get(Attempt(attempt - 1))
        attributes: dict[str, str | int] = {"baton.attempt": attempt}
        if attempt > 1:
            attributes["baton.attempt.cause"] = cause
        if session.choice:
            attributes["baton.choice"] = session.choice
        session.attempts[attempt] = self._around.tracer.start(
            "gateway.attempt",
            session.root.traceparent,
            attributes,
            links=() if last is None else (last.traceparent,),
        )

    @staticmethod
    def _note(session: Session, attempt: Attempt, moment: str, what: str) -> None:
        """The moments at which a message came, on our own clock."""
        span = session.attempts.get(attempt)
        if span is not None:
            span.event(moment, {"what": what})

    def _fail(self, action: act.Fail) -> None:
        session = self._sessions.get(action.request)
        if session is not None:
            refusal = Refusal(action.code, action.message, None, action.retry_after_s)
            session.fail(refusal)

    def _count(self, action: act.Count) -> None:
        metrics = self._around.metrics
        if action.what == "stale_chunk":
            metrics.stale_chunks.labels(action.label).inc()
        elif action.what == "fenced":
            metrics.fenced.labels(action.label).inc()
        else:
            metrics.ignored.labels(action.label).inc()

    # -- questions -----------------------------------------------------------------------

    async def _place(self, action: act.Place) -> None:
        message = action.message
        self._around.capture.placed(message)
        answer = await self._ask(subjects.PLACE, message, message.request, message.attempt)
        if isinstance(answer, Placement | Refused):
            self._feed(ev.Placed(message.request, message.attempt, answer))
        else:
            silence = _silence(answer)
            self._feed(ev.PlaceUnanswered(message.request, message.attempt, silence))

    async def _send_job(self, action: act.SendJob) -> None:
        message, role = action.message, action.role
        subject = subjects.job(role, action.worker)
        headers, began_s = self._headers(message.request, message.attempt), self._around.clock.now()
        answer = await self._ask(subject, message, message.request, message.attempt)
        self._trace_hop(headers.traceparent, action, began_s, answer)
        session = self._sessions.get(message.request)
        if session is not None and isinstance(answer, Accepted):
            self._note(session, message.attempt, "accepted", role)
        if isinstance(answer, Accepted | Refused):
            self._feed(ev.JobAnswered(message.request, message.attempt, role, answer))
        else:
            silence = _silence(answer)
            self._feed(ev.JobUnanswered(message.request, message.attempt, role, silence))

    def _trace_hop(
        self, parent: str, action: act.SendJob, began_s: float, answer: Message | ev.Silence
    ) -> None:
        """A job on its way to a worker, until the worker said that it has it."""
        if not parent:
            return
        said = answer.code if isinstance(answer, Refused) else type(answer).__name__.lower()
        said = answer.value if isinstance(answer, ev.Silence) else said
        facts: dict[str, Value] = {
            **hop(subjects.job(action.role, action.worker), "send"),
            "baton.role": action.role,
            "baton.worker": action.worker,
            "baton.attempt": action.message.attempt,
            "baton.answer": said,
        }
        now = self._around.clock.now()
        self._around.tracer.record("gateway.send", parent, began_s, now, facts, kind=Kind.PRODUCER)

    async def _ask_resend(self, action: act.AskResend) -> None:
        message, role = action.message, action.role
        subject = subjects.job(role, action.worker)
        answer = await self._ask(subject, message, message.request, message.attempt)
        if isinstance(answer, TokenEntry | Refused):
            self._feed(ev.ResendAnswered(message.request, message.attempt, role, answer))
        else:
            silence = _silence(answer)
            self._feed(ev.ResendUnanswered(message.request, message.attempt, role, silence))

    async def _cancel(self, action: act.Cancel) -> None:
        message = action.message
        subject = subjects.job(action.role, action.worker)
        began_s = self._around.clock.now()
        answer = await self._ask(subject, message, message.request, message.attempt)
        if isinstance(answer, Ended):
            self._around.metrics.cancel_settle.observe(self._around.clock.now() - began_s)
            self._feed(ev.CancelAnswered(message.request, message.attempt, action.worker))
        else:
            silence = _silence(answer)
            unanswered = ev.CancelUnanswered(
                message.request, message.attempt, action.worker, silence
            )
            self._feed(unanswered)

    async def _report_end(self, action: act.ReportEnd) -> None:
        message = action.message
        headers = self._headers(message.request, message.attempt)
        try:
            await self._around.bus.publish(subjects.PLACEMENT_ENDED, message, headers)
        except BatonError:
            self._feed(ev.EndUnsent(message))

    async def _ask(
        self, subject: str, message: Message, request: RequestId, attempt: Attempt
    ) -> Message | ev.Silence:
        bus = self._around.bus
        try:
            return await bus.request(subject, message, self._headers(request, attempt), ANSWER_S)
        except BusUnavailable:
            return ev.Silence.DISCONNECTED
        except NoResponder:
            return ev.Silence.NO_RESPONDER
        except BusTimeout:
            return ev.Silence.TIMEOUT if bus.connected else ev.Silence.DISCONNECTED
        except PayloadTooLarge:
            return ev.Silence.TOO_LARGE
        except BatonError as error:
            self._around.log.failure("gateway.answer_refused", error, request=request)
            return ev.Silence.BROKEN

    def _headers(self, request: RequestId, attempt: Attempt) -> Headers:
        session = self._sessions.get(request)
        span = None if session is None else session.attempts.get(attempt)
        traceparent = "" if span is None else span.traceparent
        return Headers(traceparent=traceparent, epoch=self._around.epoch() or None)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start an exchange. While the process ends none can start any more; then deadlines and
        the loss of our heartbeat end the work elsewhere."""
        guarded = self._guarded(work)
        try:
            task = self._around.tasks.create_task(guarded, name=name)
            # Cancelled before its first step it would leave the exchange unawaited.
            task.add_done_callback(lambda _: work.close())
        except RuntimeError:
            guarded.close()
            work.close()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - one broken exchange must not end the rest
            self._around.log.failure("gateway.exchange_failed", error)


def _silence(answer: Message | ev.Silence) -> ev.Silence:
    return answer if isinstance(answer, ev.Silence) else ev.Silence.BROKEN
