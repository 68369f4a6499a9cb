"""What only the leader does: give epochs and placements to whoever asks.

A follower is not subscribed to these questions at all, so nobody waits for its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from services.scheduler.cluster_view import cluster_seen
from services.scheduler.core.events import Event, LeadLost, LeadTaken
from services.scheduler.core.leadership import StepBack, TakeLead
from services.scheduler.core.machine import SchedulerMachine
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.store import EpochStore
from shared.bus.bus import Delivery, Subscription
from shared.errors import BusError, Code, RefusedError
from shared.ids import Epoch, WorkerId
from shared.runtime.service import Scope
from shared.telemetry.jobs import hop
from shared.telemetry.trace import Kind, Span
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import Placement, PlaceRequest, Refused
from shared.wire.views import AskCluster
from shared.wire.workers import Registered, RegisterWorker

_AGAIN_S: Final = 0.25

Apply = Callable[[Event], Placement | Refused | None]


class Answering:
    """`turned` says who we are; `run` makes the subscriptions follow."""

    def __init__(
        self,
        scope: Scope,
        core: SchedulerMachine,
        store: EpochStore,
        metrics: SchedulerMetrics,
        apply: Apply,
    ) -> None:
        self._scope = scope
        self._core = core
        self._store = store
        self._metrics = metrics
        self._apply = apply
        self._lead: TakeLead | None = None
        self._turn = asyncio.Event()
        self._open: list[Subscription] = []

    def turned(self, turn: TakeLead | StepBack) -> None:
        """Stepping back takes effect at once; leading, when questions can arrive. A lapsed lease
        may soon be renewed: the questions still come here, and are sent away for a moment."""
        match turn:
            case TakeLead():
                self._lead = turn
            case StepBack(cause=cause):
                self._lead = None
                self._scope.log.event("scheduler.stepped_back", level="warning", cause=cause)
                self._apply(LeadLost())
        self._metrics.turned(turn)
        if turn != StepBack("lapsed"):
            self._turn.set()

    async def run(self) -> None:
        """Follow the turns, for ever."""
        while True:
            await self._turn.wait()
            self._turn.clear()
            try:
                await self._follow(self._lead)
            except BusError:
                await asyncio.sleep(_AGAIN_S)
                self._turn.set()

    # -- inside ----------------------------------------------------------------------------

    async def _follow(self, lead: TakeLead | None) -> None:
        if lead is None:
            while self._open:
                await self._open.pop().close()
            return
        if not self._open:
            bus = self._scope.bus
            self._open.append(await bus.subscribe(subjects.REGISTRATIONS, self._register))
            self._open.append(await bus.subscribe(subjects.PLACE, self._place))
            self._open.append(await bus.subscribe(subjects.CLUSTER, self._look))
        if self._lead is not lead:
            return
        self._scope.run_file.update(epoch=lead.epoch)
        self._scope.log.event("scheduler.leading", leader_epoch=lead.epoch)
        before = lead.deposed
        if before is None:
            self._apply(LeadTaken(lead.epoch))
        else:
            self._apply(LeadTaken(lead.epoch, before.worker, before.epoch))

    async def _register(self, delivery: Delivery) -> Message:
        ask = delivery.message
        if not isinstance(ask, RegisterWorker):
            raise RefusedError("not a registration", Code.INVALID_PARAMETER)
        if delivery.subject != subjects.register(ask.role, ask.worker):
            raise RefusedError("this name belongs to somebody else", Code.INVALID_PARAMETER)
        known = self._core.cluster.epoch_of(ask.worker)
        epoch = await self._store.take(ask.worker, ask.incarnation, known)
        self._scope.log.event("worker.epoch_taken", peer=ask.worker, peer_epoch=epoch)
        return Registered(ask.worker, epoch, Epoch(self._core.roster.leader_epoch))

    async def _look(self, delivery: Delivery) -> Message:
        ask = delivery.message
        if not isinstance(ask, AskCluster):
            raise RefusedError("not a question about the cluster", Code.INVALID_PARAMETER)
        leader = WorkerId(self._scope.settings.worker_id)
        return cluster_seen(self._core, leader, ask.prefixes, self._scope.clock.now())

    async def _place(self, delivery: Delivery) -> Message:
        """While our lease has run out, whoever asks is sent away for a moment."""
        ask = delivery.message
        if not isinstance(ask, PlaceRequest):
            raise RefusedError("not a placement request", Code.INVALID_PARAMETER)
        began = self._scope.clock.now()
        with self._scope.tracer.start(
            "scheduler.place",
            delivery.headers.traceparent,
            {
                "baton.request.id": ask.request,
                "baton.attempt": ask.attempt,
                **hop(subjects.PLACE, "process"),
            },
            kind=Kind.CONSUMER,
        ) as span:
            reply = self._apply(ask)
            if reply is None:
                raise RefusedError("this scheduler does not lead now", Code.LOADING, _AGAIN_S)
            _describe(span, reply, self._core, began)
        self._metrics.placed(reply, self._scope.clock.now() - began)
        return reply


def _describe(span: Span, reply: Placement | Refused, core: SchedulerMachine, now: float) -> None:
    """The reasons as span attributes, and one event per candidate."""
    match reply:
        case Refused():
            span.set("baton.place.refused", reply.code)
        case Placement():
            span.set("baton.place.route_reason", reply.reason)
            span.set("baton.place.route", reply.route)
            span.set("baton.place.candidates", len(reply.candidates))
            span.set("baton.place.winner", reply.decode.worker)
            span.set("baton.place.estimate_ttft_s", reply.estimated_ttft_s)
            span.set("baton.place.cached_blocks", reply.cached_blocks)
            span.set("baton.place.leader_epoch", reply.leader_epoch)
            span.set("baton.place.policy", reply.policy)
            span.set("baton.place.fetch_blocks", reply.fetch_blocks)
            if reply.fetch_from is not None:
                span.set("baton.place.fetch_from", reply.fetch_from.worker)
            _describe_reuse(span, reply, core, now)
            _describe_candidates(span, reply)


def _describe_reuse(span: Span, reply: Placement, core: SchedulerMachine, now: float) -> None:
    """Tokens of the prompt by where they are, and how old our word for it is."""
    computing = core.cluster.get((reply.prefill or reply.decode).worker)
    if computing is None:
        return
    size = computing.report.block_tokens
    found = {"device": reply.cached_blocks * size, "host": 0, "disk": 0, "peer": 0}
    if reply.fetch_from is not None:
        source = core.cluster.get(reply.fetch_from.worker)
        pooled = source is not None and source.report.role == "kvpool"
        found["host" if pooled else "peer"] = reply.fetch_blocks * size
    for tier, tokens in found.items():
        span.set(f"baton.place.reuse.{tier}_tokens", tokens)
    span.set("baton.place.index_age_s", max(0.0, now - computing.seen))


def _describe_candidates(span: Span, reply: Placement) -> None:
    """Every candidate, the chosen one without `lost`; and by how much the next one lost."""
    for candidate in reply.candidates:
        pair = f"{candidate.prefill or 'colocated'} + {candidate.decode}"
        said = {"pair": pair, "note": candidate.note, "lost": candidate.lost}
        span.event("candidate", {**said, "score_s": candidate.score_s, **candidate.terms})
    losers = [candidate for candidate in reply.candidates if candidate.lost]
    winner = next((c for c in reply.candidates if not c.lost), None)
    second = losers[0] if losers and winner is not None else None
    if second is None or winner is None:
        span.set("baton.place.runner_up", "")
        span.set("baton.place.margin", 0.0)
        return
    span.set("baton.place.runner_up", f"{second.prefill or 'colocated'} + {second.decode}")
    span.set("baton.place.margin", second.score_s - winner.score_s)
