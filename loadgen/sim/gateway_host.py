"""A simulated gateway: the real core between simulated clients and the bus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from loadgen.sim.bus import Answer, Respond, Silence
from loadgen.sim.clients import LEFT, Client
from loadgen.sim.membership import NO_BLOCKS, NO_LOAD, Membership, Traits
from loadgen.sim.process import Process
from loadgen.sim.scene import Scene
from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.admission import Limits
from services.gateway.core.machine import GatewayMachine
from services.gateway.core.request import Policy
from shared.bus.headers import Headers
from shared.errors import Code
from shared.ids import BlockHash, RequestId, WorkerId
from shared.kv.hashing import CacheIdentity
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import (
    Accepted,
    Ended,
    JobFailed,
    Placement,
    Refused,
    Sampling,
    TokenChunk,
    TokenEntry,
)
from shared.wire.workers import StepSample, WorkerLoad, WorkerLost

NAMESPACE: Final = "tenant"


class GatewayHost(Process):
    """One incarnation. Its clients are reset when it dies."""

    role = "gateway"

    def __init__(self, scene: Scene, name: str, incarnation: int) -> None:
        super().__init__(scene, name, incarnation)
        model, pace, shape = scene.works.model, scene.pace, scene.case.shape
        identity = CacheIdentity(
            NAMESPACE, model.digest, model.tokenizer_digest, model.dtype, model.block_tokens
        )
        policy = Policy(
            identity=identity,
            place_patience_s=pace.place_patience_s,
            queue_patience_s=pace.queue_patience_s,
            resume_patience_s=pace.resume_patience_s,
            reconnect_grace_s=pace.reconnect_grace_s,
            handoff_grace_s=pace.handoff_grace_s,
        )
        limits = Limits(shape.gateway_requests, shape.gateway_tokens)
        self.machine = GatewayMachine(WorkerId(name), policy, limits)
        self.membership = Membership(self, Traits(), self, lambda _: None)
        self.clients: dict[str, Client] = {}
        self.stale = 0

    def start(self) -> None:
        bus, worker = self.scene.bus, WorkerId(self.name)
        bus.subscribe(self, subjects.tokens(worker), self._on_tokens)
        bus.subscribe(self, subjects.LOST, self._on_lost)
        self.membership.join()
        self._tick()

    def reconnected(self) -> None:
        self.membership.beat()
        self.feed(ev.BusReturned())

    def _tick(self) -> None:
        if self.machine.busy:
            self.feed(ev.Ticked())
        self.later(self.scene.pace.gateway_tick_s, self._tick)

    # -- a gateway has no work and no blocks of its own to report --------------------------

    def load(self) -> WorkerLoad:
        return NO_LOAD

    def blocks(self) -> tuple[BlockHash, ...]:
        return ()

    def steps(self) -> tuple[StepSample, ...]:
        return ()

    def digest(self) -> tuple[int, str]:
        return 0, NO_BLOCKS

    # -- the core --------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> Sequence[act.Action]:
        return self.machine.handle(event, now)

    def check(self) -> None:
        self.machine.check()

    def story(self, request: str) -> str:
        return self.machine.story(RequestId(request))

    @property
    def at_work(self) -> bool:
        return self.machine.busy

    def leftovers(self) -> list[str]:
        machine = self.machine
        held = {
            "requests": machine.open_requests,
            "waiting tokens": machine.waiting_tokens,
            "open cancels": machine.open_cancels,
        }
        return [f"{name}: {count}" for name, count in held.items() if count]

    def tally(self) -> dict[str, int]:
        return {"stale_refused": self.stale}

    # -- clients ---------------------------------------------------------------------------

    def open(self, client: Client) -> None:
        """A validated, tokenised request comes in."""
        order = client.order
        self.clients[order.request] = client
        client.opened_s = self.scene.heap.now_s
        if self.membership.epoch == 0:
            # Workers would take a job without an epoch for one of a dead gateway.
            client.end(f"error: {Code.LOADING.value}", self.scene.heap.now_s)
            return
        opened = ev.Opened(
            request=RequestId(order.request),
            prompt=order.prompt,
            sampling=Sampling(order.temperature, 1.0, order.seed, order.max_tokens, order.stop),
            route=order.route,
            deadline_s=self.now() + order.deadline_s,
            no_queue=order.no_queue,
            priority=order.priority,
        )
        self.feed(opened)

    def leave(self, client: Client) -> None:
        """The client closes its connection."""
        if client.ending is None:
            self.scene.fired["client_gone"] += 1
            client.end(LEFT, self.scene.heap.now_s)
            self.feed(ev.Closed(RequestId(client.order.request), "client_gone"))

    def _deliver(self, action: act.Deliver) -> None:
        client = self.clients.get(action.request)
        if client is None or client.ending is not None:
            return
        if action.cached_tokens is not None:
            client.cached_tokens = action.cached_tokens
        client.deliver(action.token_ids, action.finish, self.scene.heap.now_s)
        order, count = client.order, len(client.tokens)
        if client.ending is not None:
            return
        if order.stops_after is not None and count >= order.stops_after:
            client.end("stopped", self.scene.heap.now_s)
            self.feed(ev.Closed(RequestId(order.request), "stop"))
        elif order.leaves_after is not None and count >= order.leaves_after:
            self.leave(client)

    # -- what comes in ---------------------------------------------------------------------

    def _on_tokens(self, message: Message, _: Headers, __: Respond) -> None:
        match message:
            case TokenChunk():
                self.feed(ev.TokensArrived(message))
            case JobFailed():
                self.feed(ev.AttemptFailed(message))

    def _on_lost(self, message: Message, _: Headers, __: Respond) -> None:
        """The core itself refuses what an older leader says."""
        if isinstance(message, WorkerLost):
            self.feed(ev.WorkerDied(message))

    # -- what goes out ---------------------------------------------------------------------

    def perform(self, action: act.Action) -> None:
        match action:
            case act.Deliver():
                self._deliver(action)
            case act.Fail(request=request, code=code):
                client = self.clients.get(request)
                if client is not None and client.ending is None:
                    client.end(f"error: {code.value}", self.scene.heap.now_s)
            case act.Place():
                self._place(action)
            case act.SendJob():
                self._send_job(action)
            case act.AskResend():
                self._ask_resend(action)
            case act.Cancel():
                self._cancel(action)
            case act.ReportEnd(message=message):
                if not self.scene.bus.publish(self, subjects.PLACEMENT_ENDED, message, Headers()):
                    self.soon(lambda: self.feed(ev.EndUnsent(message)))
            case act.Count():
                self.stale += action.what in ("stale_chunk", "fenced")
            case act.StartAttempt() | act.EndAttempt() | act.ShowPlacement():
                pass
            case _:
                assert_never(action)

    def _place(self, action: act.Place) -> None:
        key = (action.message.request, action.message.attempt)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Placement | Refused):
                self.feed(ev.Placed(*key, answer))
            else:
                self.feed(ev.PlaceUnanswered(*key, self._silence(answer)))

        self._ask(subjects.PLACE, action.message, answered)

    def _send_job(self, action: act.SendJob) -> None:
        role, key = action.role, (action.message.request, action.message.attempt)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Accepted | Refused):
                self.feed(ev.JobAnswered(*key, role, answer))
            else:
                self.feed(ev.JobUnanswered(*key, role, self._silence(answer)))

        self._ask(subjects.job(role, action.worker), action.message, answered)

    def _ask_resend(self, action: act.AskResend) -> None:
        role, key = action.role, (action.message.request, action.message.attempt)

        def answered(answer: Answer) -> None:
            if isinstance(answer, TokenEntry | Refused):
                self.feed(ev.ResendAnswered(*key, role, answer))
            else:
                self.feed(ev.ResendUnanswered(*key, role, self._silence(answer)))

        self._ask(subjects.job(role, action.worker), action.message, answered)

    def _cancel(self, action: act.Cancel) -> None:
        worker, key = action.worker, (action.message.request, action.message.attempt)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Ended):
                self.feed(ev.CancelAnswered(*key, worker))
            else:
                self.feed(ev.CancelUnanswered(*key, worker, self._silence(answer)))

        self._ask(subjects.job(action.role, worker), action.message, answered)

    def _ask(self, subject: str, message: Message, answered: Callable[[Answer], None]) -> None:
        bus, limit_s = self.scene.bus, self.scene.pace.answer_s
        bus.request(self, subject, message, self.membership.headers, limit_s, answered)

    def _silence(self, answer: Answer) -> ev.Silence:
        match answer:
            case Silence.UNAVAILABLE:
                return ev.Silence.DISCONNECTED
            case Silence.NO_RESPONDER:
                return ev.Silence.NO_RESPONDER
            case Silence.TIMEOUT:
                return ev.Silence.TIMEOUT if self.connected else ev.Silence.DISCONNECTED
            case _:
                return ev.Silence.BROKEN
