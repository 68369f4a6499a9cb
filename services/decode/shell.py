"""The event loop around the core: feeds it, carries out what it wants, owns the tasks.

Knows protocols only. Decides nothing: what fails out there comes back as an event.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Final, assert_never

from services.decode.core import actions as do
from services.decode.core import events as on
from services.decode.core.machine import DecodeMachine
from services.decode.core.report import load
from services.decode.emitter import Emitter
from services.decode.kv_inbox import KvInbox
from services.decode.kv_pool import PoolFlow
from services.decode.metrics import DecodeMetrics
from services.decode.spans import JobSpans
from shared.bus.bus import Delivery, Subscription
from shared.bus.headers import Headers
from shared.engine.executor import Executor
from shared.errors import Code, EngineError, RefusedError
from shared.ids import Epoch
from shared.runtime.membership import Membership
from shared.runtime.service import Scope
from shared.telemetry.jobs import Place
from shared.telemetry.trace import trace_id
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import (
    CancelRequest,
    DecodeJob,
    JobFailed,
    LeaseKey,
    PagesReady,
    PrefillFailed,
    Refused,
    ResendTokens,
    TokenChunk,
)
from shared.wire.workers import CostModel, WorkerLost

_TICK_S: Final = 0.25
_JOBS_AT_ONCE: Final = 1024
_LAST_WORDS_S: Final = 1.0


class Shell:
    """Runs one core from `serve` until `drain` is through or the core breaks."""

    def __init__(
        self,
        scope: Scope,
        machine: DecodeMachine,
        membership: Membership,
        executor: Executor,
        inbox: KvInbox,
        pool: PoolFlow,
        cost: CostModel,
    ) -> None:
        self._scope = scope
        self._machine = machine
        self._membership = membership
        self._executor = executor
        self._inbox = inbox
        self._pool = pool
        self._cost = cost
        place = Place(
            membership.worker,
            lambda: membership.epoch,
            subjects.job("decode", membership.worker),
            machine.desk.rules.page_bytes,
        )
        self._spans = JobSpans(scope.tracer, place)
        self._metrics = DecodeMetrics(scope.metrics, lambda: executor.tick_age_s)
        self._emitter = Emitter(scope.bus, self._metrics.unsent_tokens.inc)
        self._steps: asyncio.Queue[do.RunStep] = asyncio.Queue(maxsize=1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self._calls = 0
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rested = asyncio.Event()
        self._draining = False

    # -- life ------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Until drained. Raises what broke the core."""
        subscriptions = await self._subscribe()
        loops = [
            self._scope.tasks.create_task(self._run_steps(), name="decode-steps"),
            self._scope.tasks.create_task(self._emitter.run(), name="decode-emitter"),
            self._scope.tasks.create_task(self._tick(), name="decode-tick"),
        ]
        try:
            await self._end
        finally:
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(RefusedError("the worker is stopping", Code.DRAINING))
            for subscription in subscriptions:
                await subscription.close()
            await self._emitter.flushed(_LAST_WORDS_S)
            for task in (*loops, *self._tasks):
                task.cancel()
            self._spans.close_all()

    async def drain(self, limit_s: float) -> None:
        """No new jobs; wait for the running ones, then hand over the rest by replay."""
        self._draining = True
        self._membership.set_draining()
        self.feed(on.DrainStarted())
        try:
            async with asyncio.timeout(limit_s):
                await self._rested.wait()
        except TimeoutError:
            self._scope.log.event("decode.handed_over", level="warning")
            self.feed(on.DrainExpired())
            await self._settled(_LAST_WORDS_S)
        if not self._end.done():
            self._end.set_result(None)

    @property
    def serving(self) -> bool:
        return not self._end.done() and not self._draining

    def feed(self, event: on.Event) -> None:
        """One event through the core. After the end nothing happens any more."""
        if self._end.done():
            return
        try:
            actions = self._machine.handle(event, self._scope.clock.now())
        except Exception as error:
            # A core that raised cannot be trusted with pages: the process ends.
            self._end.set_exception(error)
            raise
        for action in actions:
            self._carry_out(action)
        if self._draining and self._machine.idle:
            self._rested.set()

    async def _settled(self, limit_s: float) -> None:
        """Releases that are under way get a moment."""
        try:
            async with asyncio.timeout(limit_s):
                await self._rested.wait()
        except TimeoutError:
            return

    # -- what comes in ---------------------------------------------------------------------

    async def _subscribe(self) -> list[Subscription]:
        bus, worker = self._scope.bus, self._membership.worker
        jobs = subjects.job("decode", worker)
        return [
            await bus.subscribe(jobs, self._on_job, concurrency=_JOBS_AT_ONCE),
            await bus.subscribe(subjects.pages(worker), self._on_pages),
            await bus.subscribe(subjects.LOST, self._on_lost),
        ]

    async def _on_job(self, delivery: Delivery) -> Message:
        call = self._next_call()
        match delivery.message:
            case DecodeJob() as job:
                return await self._take_job(call, job, delivery.headers)
            case CancelRequest() as cancel:
                return await self._ask(call, on.CancelArrived(call, cancel))
            case ResendTokens() as resend:
                return await self._ask(call, on.ResendArrived(call, resend))
            case _:
                raise RefusedError("not a message for a decode worker", Code.INVALID_PARAMETER)

    async def _take_job(self, call: int, job: DecodeJob, headers: Headers) -> Message:
        ahead = load(self._machine, self._cost).queued_tokens
        self._spans.opened(job.request, job.attempt, headers.traceparent, ahead)
        epoch = None if headers.epoch is None else Epoch(headers.epoch)
        reply = await self._ask(call, on.JobArrived(call, job, epoch, secrets.token_hex(16)))
        if self._machine.desk.find(job.request, job.attempt) is None:
            # Refused, or repeated after its end: there is no JobClosed to come.
            code = reply.code if isinstance(reply, Refused) else None
            self._spans.ended(job.request, job.attempt, code)
        elif job.prefill is not None:
            self._inbox.expect(job.prefill)
        return reply

    async def _on_pages(self, delivery: Delivery) -> Message:
        call = self._next_call()
        match delivery.message:
            case PagesReady() as ready:
                event = on.PagesArrived(call, ready, delivery.headers.traceparent)
                return await self._ask(call, event)
            case PrefillFailed() as failure:
                return await self._ask(call, on.PrefillFailedArrived(call, failure))
            case _:
                raise RefusedError("not a message about pages", Code.INVALID_PARAMETER)

    async def _on_lost(self, delivery: Delivery) -> None:
        lost = delivery.message
        if not isinstance(lost, WorkerLost) or not self._membership.obeys(lost):
            return
        if lost.worker == self._membership.worker:
            self._declared_lost(lost)
            return
        replaced = lost.cause == "replaced"
        self.feed(on.PeerLost(lost.worker, lost.role, lost.epoch, replaced))
        await self._inbox.forget(lost)

    def _declared_lost(self, lost: WorkerLost) -> None:
        """Silence can be disproved; a newer incarnation under our name cannot."""
        if lost.epoch < self._membership.epoch:
            return
        if lost.cause != "replaced":
            self._membership.beat_soon()
        elif not self._end.done():
            self._scope.log.event("decode.replaced", level="error")
            self._end.set_exception(RefusedError("another process took this worker's name"))

    def _next_call(self) -> int:
        self._calls += 1
        return self._calls

    async def _ask(self, call: int, event: on.Event) -> Message:
        """Feed an event and wait for its answer. The core answers at once, only a job that waits
        for room gets its answer within `reserve_wait_s`."""
        if self._end.done():
            raise RefusedError("the worker is stopping", Code.DRAINING)
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._replies[call] = reply
        try:
            self.feed(event)
            return await reply
        finally:
            del self._replies[call]

    async def _tick(self) -> None:
        while True:
            self._metrics.show(self._machine, self._cost)
            await asyncio.sleep(_TICK_S)
            self.feed(on.Tick())

    # -- the engine ------------------------------------------------------------------------

    async def _run_steps(self) -> None:
        """One step after the other; the end of one brings the next."""
        while True:
            step = await self._steps.get()
            try:
                result = await self._executor.step(step.items)
            except EngineError as error:
                self._scope.log.event("engine.step_failed", level="error", reason=error.message)
                self.feed(on.StepFailed(step.step, error.message))
                continue
            self._metrics.stepped(step, result.seconds)
            shares = ((len(item.tokens), item.start) for item in step.items)
            self._membership.measured.step(shares, result.seconds)
            self.feed(on.StepEnded(step.step, result.tokens, result.logprobs))

    # -- what goes out ---------------------------------------------------------------------

    def _carry_out(self, action: do.Action) -> None:
        match action:
            case do.Reply(call, message):
                self._answer(call, message)
            case do.RunStep():
                self._steps.put_nowait(action)
            case do.EmitTokens() | do.FailJob():
                self._emit(action)
            case do.Traced():
                self._spans.traced(action)
                context = self._spans.context(LeaseKey(action.request, action.attempt))
                self._metrics.traced(action, trace_id(context))
            case do.JobClosed():
                self._spans.closed(action)
            case do.PublishBlocks(events):
                self._membership.publish_blocks(events)
                self._metrics.evictions.seen(events)
            case do.Pull():
                self._spawn(self._pull(action), "decode-pull")
            case do.Verify() | do.Checksum() | do.RenewLeases() | do.Release():
                self._spawn(self._exchange(action), f"decode-{type(action).__name__.lower()}")
            case do.Offer() | do.LookUp() | do.ReleasePool():
                self._spawn(self._with_pool(action), f"decode-{type(action).__name__.lower()}")
            case _:
                assert_never(action)

    def _answer(self, call: int, message: Message) -> None:
        reply = self._replies.get(call)
        if reply is not None and not reply.done():
            reply.set_result(message)

    def _emit(self, action: do.EmitTokens | do.FailJob) -> None:
        worker, epoch = self._membership.worker, self._membership.epoch
        message: TokenChunk | JobFailed
        if isinstance(action, do.EmitTokens):
            message = TokenChunk(worker, epoch, action.entries)
        else:
            message = JobFailed(
                action.request, action.attempt, worker, epoch, action.code.value, action.message
            )
        self._emitter.send(action.gateway, message, Headers(epoch=epoch))

    async def _pull(self, action: do.Pull) -> None:
        """The end is reported whatever happens: the pages wait for it."""
        ended = on.PullEnded(action.pull, Code.INTERNAL, settled=False)
        began_s = self._scope.clock.now()
        try:
            ended = await self._inbox.pull(action)
            if ended.error is None:
                now, peer = self._scope.clock.now(), action.peer.worker
                self._membership.measured.read(peer, ended.bytes, now - began_s, now)
        finally:
            self.feed(ended)

    async def _exchange(
        self, action: do.Verify | do.Checksum | do.RenewLeases | do.Release
    ) -> None:
        event: on.Event | None
        match action:
            case do.Verify():
                event = await self._inbox.verify(action)
            case do.Checksum():
                event = await self._inbox.checksum(action)
            case do.RenewLeases():
                event = await self._inbox.renew(action)
            case do.Release():
                event = await self._inbox.release(action, self._spans.context(action.lease))
            case _:
                assert_never(action)
        if event is not None:
            self.feed(event)

    async def _with_pool(self, action: do.Offer | do.LookUp | do.ReleasePool) -> None:
        match action:
            case do.Offer():
                self.feed(await self._pool.offer(action))
            case do.LookUp():
                self._inbox.expect(action.pool)
                self.feed(await self._pool.look_up(action))
            case do.ReleasePool():
                await self._pool.release(action)
            case _:
                assert_never(action)

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = self._scope.tasks.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
