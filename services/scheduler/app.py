"""The scheduler's shell: bus and key-value store around the core. No decision is made here."""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Final

from services.scheduler.config import SchedulerConfig
from services.scheduler.core.events import (
    Action,
    Answer,
    AskSnapshot,
    BusLost,
    BusRestored,
    Declare,
    EpochTaken,
    Event,
    SnapshotFailed,
    Tick,
)
from services.scheduler.core.machine import SchedulerMachine, SchedulerSettings
from services.scheduler.core.placement import PlacementSettings
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.store import EpochStore
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.errors import BusError, Code, RefusedError, StartupError
from shared.ids import Epoch
from shared.runtime.service import Scope
from shared.telemetry.trace import Span
from shared.wire import subjects
from shared.wire.blocks import (
    BlocksCleared,
    BlockSnapshot,
    BlocksRemoved,
    BlocksStored,
    SnapshotRequest,
)
from shared.wire.codec import Message
from shared.wire.requests import Acknowledged, Placement, PlacementEnded, PlaceRequest, Refused
from shared.wire.workers import Heartbeat, Registered, RegisterWorker

_TICK_S: Final = 0.25
_LEADER_CHECK_S: Final = 1.0
_SETTLE_BEATS: Final = 1.5
_SNAPSHOT_TIMEOUT_S: Final = 5.0
_MAX_SNAPSHOTS: Final = 64


class SchedulerApp:
    """One scheduler process. `run` takes the lead, then answers until it is told to stop or a
    newer leader appears."""

    role = "scheduler"

    def __init__(self, scope: Scope, config: SchedulerConfig) -> None:
        self._scope = scope
        self._config = config
        self._incarnation = secrets.token_hex(8)
        self._core: SchedulerMachine | None = None
        self._store: EpochStore | None = None
        self._leader_epoch = Epoch(0)
        self._settled_at = 0.0
        self._snapshots: set[tuple[str, int]] = set()
        self._metrics = SchedulerMetrics(scope.metrics)
        self._done = asyncio.Event()

    async def run(self, scope: Scope) -> None:
        """Lead until drained. Raises StartupError when the store cannot be reached."""
        try:
            self._store = EpochStore(await scope.open_bucket(subjects.EPOCHS))
            self._leader_epoch = await self._store.lead(self._incarnation)
        except BusError as error:
            raise StartupError(f"the epoch store does not answer: {error.message}") from error
        self._settled_at = scope.clock.now() + _SETTLE_BEATS * self._config.heartbeat_s
        self._core = self._new_core()
        scope.run_file.update(epoch=self._leader_epoch)
        scope.log.event("scheduler.leading", leader_epoch=self._leader_epoch)
        scope.bus.on_reconnect(self._reconnected)
        await self._subscribe()
        scope.tasks.create_task(self._watch_leader(), name="watch-leader")
        while not self._done.is_set():
            self._observe_bus()
            self._apply(Tick())
            self._metrics.show(self._core)
            await asyncio.sleep(_TICK_S)

    def ready(self) -> bool:
        """Leading, connected, and long enough to have heard every worker."""
        settled = self._core is not None and self._scope.clock.now() >= self._settled_at
        return settled and self._scope.bus.connected

    def accounting(self) -> dict[str, object]:
        """Load charged but not yet confirmed; zero when the cluster is idle."""
        core = self._core
        return {
            "held_pages": 0,
            "leases": 0,
            "requests": 0,
            "charges": core.cluster.charges() if core else 0,
            "index_blocks": core.index.blocks if core else 0,
            "workers": {w.report.worker: w.report.epoch for w in core.cluster} if core else {},
            "leader_epoch": self._leader_epoch,
        }

    async def drain(self) -> None:
        """A scheduler holds nothing that must be finished."""
        self._done.set()

    # -- inside ------------------------------------------------------------------------

    def _new_core(self) -> SchedulerMachine:
        settings = SchedulerSettings(
            leader_epoch=self._leader_epoch,
            lost_after_s=self._config.lost_after_s,
            settled_at=self._settled_at,
            route=self._config.route,
            placement=PlacementSettings(self._config.colocate_below_tokens),
        )
        return SchedulerMachine(settings, random.Random(self._config.seed))

    async def _subscribe(self) -> None:
        bus = self._scope.bus
        await bus.subscribe(subjects.REGISTER, self._register)
        await bus.subscribe(subjects.HEARTBEATS, self._take_in, concurrency=1)
        await bus.subscribe(subjects.BLOCK_EVENTS, self._take_in, concurrency=1)
        await bus.subscribe(subjects.PLACE, self._place)
        await bus.subscribe(subjects.PLACEMENT_ENDED, self._end)

    def _reconnected(self) -> None:
        self._apply(BusRestored())

    def _observe_bus(self) -> None:
        """Silence while disconnected proves nothing; the reconnect callback says when it does."""
        if not self._scope.bus.connected:
            self._apply(BusLost())

    def _apply(self, event: Event) -> Placement | Refused | None:
        """Run one event through the core and start what it asks for. The answer, if one came."""
        core = self._core
        if core is None:
            return None
        answer: Placement | Refused | None = None
        for action in core.handle(event, self._scope.clock.now()):
            match action:
                case Answer(reply):
                    answer = reply
                case _:
                    self._start(action)
        return answer

    def _start(self, action: Action) -> None:
        match action:
            case Declare(lost):
                self._scope.log.event(
                    "worker.lost", level="warning", peer=lost.worker, cause=lost.cause
                )
                self._scope.tasks.create_task(self._publish(subjects.LOST, lost), name="declare")
            case AskSnapshot():
                key = (action.worker, action.chunk)
                if key not in self._snapshots and len(self._snapshots) < _MAX_SNAPSHOTS:
                    self._snapshots.add(key)
                    self._scope.tasks.create_task(self._snapshot(action, key), name="snapshot")
            case Answer():
                raise AssertionError("an answer has no task")

    async def _publish(self, subject: str, message: Message) -> None:
        try:
            await self._scope.bus.publish(subject, message, Headers())
        except BusError:
            self._scope.log.event("scheduler.unsent", level="warning", subject=subject)

    async def _snapshot(self, ask: AskSnapshot, key: tuple[str, int]) -> None:
        """Ask one part; whatever goes wrong, the next heartbeat may start again."""
        try:
            reply = await self._scope.bus.request(
                subjects.snapshot(ask.role, ask.worker),
                SnapshotRequest(ask.chunk),
                Headers(),
                _SNAPSHOT_TIMEOUT_S,
            )
        except BusError:
            reply = Refused(Code.WORKER_LOST.value, "no answer")
        self._snapshots.discard(key)
        if isinstance(reply, BlockSnapshot):
            self._apply(reply)
        else:
            self._apply(SnapshotFailed(ask.worker, ask.epoch))

    async def _watch_leader(self) -> None:
        """Step down for good as soon as a newer leader is on record."""
        while self._store is not None:
            await asyncio.sleep(_LEADER_CHECK_S)
            try:
                holder = await self._store.leader()
            except BusError:
                continue
            if holder is not None and holder.epoch > self._leader_epoch:
                raise StartupError(
                    f"another scheduler leads with epoch {holder.epoch}: this one steps down"
                )

    # -- handlers ----------------------------------------------------------------------

    async def _register(self, delivery: Delivery) -> Message:
        ask = delivery.message
        if not isinstance(ask, RegisterWorker) or self._store is None:
            raise RefusedError("not a registration", Code.INVALID_PARAMETER)
        epoch = await self._store.take(ask.worker, ask.incarnation)
        self._apply(EpochTaken(ask.worker, ask.role, epoch))
        self._scope.log.event("worker.epoch_taken", peer=ask.worker, peer_epoch=epoch)
        return Registered(ask.worker, epoch, self._leader_epoch)

    async def _take_in(self, delivery: Delivery) -> None:
        match delivery.message:
            case Heartbeat() | BlocksStored() | BlocksRemoved() | BlocksCleared() as event:
                self._apply(event)
            case _:
                self._metrics.refused.inc()

    async def _place(self, delivery: Delivery) -> Message:
        ask = delivery.message
        if not isinstance(ask, PlaceRequest):
            raise RefusedError("not a placement request", Code.INVALID_PARAMETER)
        began = self._scope.clock.now()
        with self._scope.tracer.start(
            "scheduler.place",
            delivery.headers.traceparent,
            {"baton.request.id": ask.request, "baton.attempt": ask.attempt},
        ) as span:
            reply = self._apply(ask)
            if reply is None:
                raise RefusedError("the scheduler has just begun", Code.LOADING, 1.0)
            _describe(span, reply)
        self._metrics.placed(reply, self._scope.clock.now() - began)
        return reply

    async def _end(self, delivery: Delivery) -> Message | None:
        if isinstance(delivery.message, PlacementEnded):
            self._apply(delivery.message)
        return Acknowledged()


def _describe(span: Span, reply: Placement | Refused) -> None:
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
            for candidate in reply.candidates:
                pair = f"{candidate.prefill or 'colocated'} + {candidate.decode}"
                span.event(
                    "candidate", {"pair": pair, "score_s": candidate.score_s, **candidate.terms}
                )
