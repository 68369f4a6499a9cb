"""The event loop around the machine: feeds it, carries out what it wants, owns the tasks.

Knows protocols only. Decides nothing: what fails out there comes back as an event.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Coroutine
from typing import Final, Protocol, assert_never

from services.prefill.core import actions as act
from services.prefill.core import events as on
from services.prefill.core.jobs import JobKey
from services.prefill.core.machine import Machine
from services.prefill.courier import Courier
from services.prefill.kv_flow import FlowLimits, PoolFlow
from services.prefill.metrics import WorkerMetrics
from services.prefill.spans import JobSpans
from shared.bus.bus import Delivery, Subscription
from shared.bus.headers import Headers
from shared.dataplane.plane import Plane
from shared.engine.executor import Executor
from shared.errors import BusError, Code, EngineError, RefusedError
from shared.ids import Attempt, RequestId, WorkerId
from shared.runtime.membership import Membership
from shared.runtime.retry import Sender
from shared.runtime.service import Scope
from shared.telemetry.jobs import Place
from shared.telemetry.metrics import exemplar
from shared.telemetry.trace import trace_id
from shared.wire import subjects
from shared.wire.blocks import LookupBlocks, ReleaseBlocks
from shared.wire.codec import Message
from shared.wire.requests import (
    CancelRequest,
    PrefillJob,
    ReleaseLease,
    RenewLeases,
    ResendTokens,
)
from shared.wire.workers import WorkerLost

_TICK_S: Final = 0.25
_TICKET_BYTES: Final = 16
_LAST_WORDS_S: Final = 1.0


class _About(Protocol):
    """Anything that names an attempt."""

    @property
    def request(self) -> RequestId: ...

    @property
    def attempt(self) -> Attempt: ...


class Shell:
    """Runs one machine from `serve` until `drain` is through or the machine breaks."""

    def __init__(
        self,
        scope: Scope,
        machine: Machine,
        membership: Membership,
        executor: Executor,
        plane: Plane,
        limits: FlowLimits,
    ) -> None:
        self._scope = scope
        self._machine = machine
        self._membership = membership
        self._executor = executor
        sender = Sender(scope.bus, scope.clock, random.Random(secrets.randbits(64)))
        self._courier = Courier(sender)
        self._flow = PoolFlow(sender, plane, executor, limits, membership.peer_lost, self._on_read)
        place = Place(
            membership.worker,
            lambda: membership.epoch,
            subjects.job("prefill", membership.worker),
            executor.engine.memory.page_bytes,
        )
        self._spans = JobSpans(scope.tracer, place)
        self._ahead = 0
        """Prompt tokens that waited when the job came that is about to be opened."""
        self._metrics = WorkerMetrics(scope.metrics, lambda: executor.tick_age_s)
        self._work: asyncio.Queue[act.RunStep | act.SumPages] = asyncio.Queue(maxsize=1)
        self._job_tasks: dict[JobKey, set[asyncio.Task[None]]] = {}
        self._other_tasks: set[asyncio.Task[None]] = set()
        self._calls = 0
        self._replies: dict[int, Message] = {}
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rested = asyncio.Event()

    # -- life ------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Until drained. Raises what broke the machine."""
        subscriptions = await self._subscribe()
        engine = self._scope.tasks.create_task(self._run_engine(), name="prefill-engine")
        ticks = self._scope.tasks.create_task(self._tick(), name="prefill-tick")
        try:
            await self._end
        finally:
            for subscription in subscriptions:
                await subscription.close()
            await self._last_words()
            engine.cancel()
            ticks.cancel()
            self._spans.close_all()

    async def drain(self, limit_s: float) -> None:
        """No new jobs; wait for the running ones and for decode to release their pages."""
        self._membership.set_draining()
        self.feed(on.DrainStarted())
        try:
            async with asyncio.timeout(limit_s):
                await self._rested.wait()
        except TimeoutError:
            self._scope.log.event("prefill.gave_up_jobs", level="warning")
            self.feed(on.DrainExpired())
        if not self._end.done():
            self._end.set_result(None)

    @property
    def serving(self) -> bool:
        return not self._end.done() and not self._machine.draining

    def feed(self, event: on.Event) -> None:
        """One event through the machine. After the end nothing happens any more."""
        if self._end.done():
            return
        try:
            actions = self._machine.handle(event, self._scope.clock.now())
        except Exception as error:
            # A machine that raised cannot be trusted with pages: the process ends.
            self._end.set_exception(error)
            raise
        for action in actions:
            self._carry_out(action)
        if self._machine.draining and self._machine.idle:
            self._rested.set()

    # -- what comes in ---------------------------------------------------------------------

    async def _subscribe(self) -> list[Subscription]:
        bus, worker = self._scope.bus, self._membership.worker
        return [
            await bus.subscribe(subjects.job("prefill", worker), self._on_job),
            await bus.subscribe(subjects.leases(worker), self._on_lease),
            await bus.subscribe(subjects.lookups(worker), self._on_lookup),
            await bus.subscribe(subjects.LOST, self._on_lost),
        ]

    async def _on_job(self, delivery: Delivery) -> Message | None:
        call = self._next_call()
        match delivery.message:
            case PrefillJob() as job:
                self._ahead = self._machine.load(self._scope.clock.now()).queued_tokens
                tickets = (secrets.token_hex(_TICKET_BYTES), secrets.token_hex(_TICKET_BYTES))
                sent = delivery.headers
                arrived = on.JobArrived(call, job, *tickets, sent.traceparent, sent.epoch)
                return self._ask(call, arrived)
            case CancelRequest() as cancel:
                return self._ask(call, on.CancelArrived(call, cancel))
            case ResendTokens() as resend:
                return self._ask(call, on.ResendArrived(call, resend))
            case _:
                raise RefusedError("not a message for a prefill worker", Code.INVALID_PARAMETER)

    async def _on_lease(self, delivery: Delivery) -> Message | None:
        call = self._next_call()
        match delivery.message:
            case RenewLeases() as renew:
                return self._ask(call, on.RenewArrived(call, renew))
            case ReleaseLease() as release:
                return self._ask(call, on.ReleaseArrived(call, release))
            case _:
                raise RefusedError("not a message about leases", Code.INVALID_PARAMETER)

    async def _on_lookup(self, delivery: Delivery) -> Message | None:
        call = self._next_call()
        match delivery.message:
            case LookupBlocks() as lookup:
                ticket = secrets.token_hex(_TICKET_BYTES)
                return self._ask(call, on.LookupArrived(call, lookup, ticket))
            case ReleaseBlocks() as release:
                return self._ask(call, on.LoanReturned(call, release))
            case _:
                raise RefusedError("not a message about blocks", Code.INVALID_PARAMETER)

    async def _on_lost(self, delivery: Delivery) -> None:
        lost = delivery.message
        if not isinstance(lost, WorkerLost) or not self._membership.obeys(lost):
            return
        if lost.worker == self._membership.worker:
            self._declared_lost(lost)
            return
        self.feed(on.PeerLost(lost))
        await self._flow.forget(lost)

    def _declared_lost(self, lost: WorkerLost) -> None:
        """Silence can be disproved; a newer incarnation under our name cannot."""
        if lost.epoch < self._membership.epoch:
            return
        if lost.cause != "replaced":
            self._membership.beat_soon()
        elif not self._end.done():
            self._scope.log.event("prefill.replaced", level="error")
            self._end.set_exception(RefusedError("another process took this worker's name"))

    def _next_call(self) -> int:
        self._calls += 1
        return self._calls

    def _ask(self, call: int, event: on.Event) -> Message:
        self.feed(event)
        reply = self._replies.pop(call, None)
        if reply is None:
            raise RefusedError("the worker is stopping", Code.DRAINING)
        return reply

    async def _tick(self) -> None:
        while True:
            self._metrics.show(self._machine, self._scope.clock.now())
            await asyncio.sleep(_TICK_S)
            self.feed(on.Tick())

    # -- the engine ------------------------------------------------------------------------

    async def _run_engine(self) -> None:
        """One call after the other; the event of one brings the next."""
        while True:
            work = await self._work.get()
            self.feed(await self._engine_event(work))

    def _on_read(self, peer: WorkerId, size_bytes: int, seconds: float) -> None:
        now = self._scope.clock.now()
        self._membership.measured.read(peer, size_bytes, seconds, now)

    async def _engine_event(self, work: act.RunStep | act.SumPages) -> on.Event:
        try:
            if isinstance(work, act.SumPages):
                return on.PagesSummed(work.step, await self._executor.checksums(work.pages))
            result = await self._executor.step(work.items)
        except EngineError as error:
            self._scope.log.event("engine.step_failed", level="error", reason=error.message)
            return on.StepFailed(work.step, error.message)
        self._metrics.step_seconds.observe(result.seconds)
        self._metrics.step_tokens.observe(sum(len(item.tokens) for item in work.items))
        shares = ((len(item.tokens), item.start) for item in work.items)
        self._membership.measured.step(shares, result.seconds)
        return on.StepEnded(work.step, result.tokens, result.seconds, result.logprobs)

    # -- what goes out ---------------------------------------------------------------------

    def _carry_out(self, action: act.Action) -> None:
        match action:
            case act.Reply(call, message):
                self._replies[call] = message
            case act.JobOpened() | act.JobClosed() | act.Traced():
                self._note(action)
            case act.RunStep() | act.SumPages():
                self._work.put_nowait(action)
            case act.PublishBlocks(events):
                self._membership.publish_blocks(events)
                self._metrics.evictions.seen(events)
            case act.EmitTokens():
                self._spawn(self._emit(action), "prefill-emit")
            case act.FailJob():
                self._spawn(
                    self._courier.fail(action, self._headers(action.failed)), "prefill-fail"
                )
            case act.SendPages():
                self._spawn(self._send_pages(action), "prefill-pages", _key(action.ready))
            case act.Lookup():
                self._spawn(self._look_up(action), "prefill-lookup")
            case act.Pull():
                self._spawn(self._pull(action), "prefill-pull")
            case act.Offer():
                self._spawn(self._offer(action), "prefill-offer")
            case act.ReleasePool():
                self._spawn(self._flow.release(action), "prefill-release")
            case _:
                assert_never(action)

    def _note(self, action: act.JobOpened | act.JobClosed | act.Traced) -> None:
        match action:
            case act.JobOpened():
                self._spans.opened(action, self._ahead)
            case act.Traced():
                self._spans.traced(action)
                if action.name == "prefill.queue":
                    context = self._spans.context(action.request, action.attempt)
                    self._metrics.queue_seconds.observe(
                        action.end_s - action.start_s, exemplar(trace_id(context))
                    )
            case act.JobClosed():
                self._spans.closed(action)
                for task in self._job_tasks.pop(_key(action), ()):
                    if task is not asyncio.current_task():
                        task.cancel()

    async def _emit(self, action: act.EmitTokens) -> None:
        try:
            await self._courier.emit(action, Headers(epoch=self._membership.epoch))
        except BusError:
            self._metrics.unsent_tokens.inc(len(action.chunk.entries))

    async def _send_pages(self, action: act.SendPages) -> None:
        self.feed(await self._courier.send_pages(action, self._headers(action.ready)))

    async def _look_up(self, action: act.Lookup) -> None:
        self.feed(await self._flow.look_up(action, self._headers(action)))

    async def _offer(self, action: act.Offer) -> None:
        self.feed(await self._flow.offer(action, self._headers(action)))

    async def _pull(self, action: act.Pull) -> None:
        """The end is reported whatever happens: the pages wait for it. Not cut short when the job
        closes: only a read that ends by itself tells whether its bytes have settled."""
        ended = on.PullEnded(action.request, action.attempt, ())
        try:
            ended = await self._flow.pull(action)
        finally:
            self.feed(ended)

    def _headers(self, about: _About) -> Headers:
        key = _key(about)
        return Headers(
            traceparent=self._spans.context(key.request, key.attempt),
            epoch=self._membership.epoch,
        )

    def _spawn(
        self, work: Coroutine[object, object, None], name: str, key: JobKey | None = None
    ) -> None:
        """A task of the process; with a key it is cancelled when that job closes."""
        task = self._scope.tasks.create_task(work, name=name)
        group = self._other_tasks if key is None else self._job_tasks.setdefault(key, set())
        group.add(task)
        task.add_done_callback(group.discard)

    async def _last_words(self) -> None:
        """Give notices that are under way a moment."""
        if self._other_tasks:
            await asyncio.wait(tuple(self._other_tasks), timeout=_LAST_WORDS_S)


def _key(about: _About) -> JobKey:
    return JobKey(about.request, about.attempt)
