"""The scheduler's shell: bus and key-value store around the core. No decision is made here.

Several processes may run: all hear the same, the one that holds the lease answers.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final

from services.scheduler import views
from services.scheduler.announcing import Announcing
from services.scheduler.answering import Answering
from services.scheduler.collecting import Collecting
from services.scheduler.config import SchedulerConfig
from services.scheduler.core.balance.balance import OrderSwitch, Planned
from services.scheduler.core.events import (
    Action,
    Answer,
    AskPresence,
    AskSnapshot,
    BusLost,
    BusRestored,
    Declare,
    Disconnected,
    Event,
    Presence,
    SnapshotFailed,
    SwitchAnswered,
    Tick,
)
from services.scheduler.core.machine import SchedulerMachine, SchedulerSettings
from services.scheduler.core.recovery import RetrySettings
from services.scheduler.event_log import EventLogFile
from services.scheduler.lease import LeaseKeeper
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.store import EpochStore
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.errors import BusError, Code, NoResponder, StartupError
from shared.ids import Epoch, WorkerId
from shared.runtime.service import Scope
from shared.wire import subjects
from shared.wire.blocks import (
    BlocksCleared,
    BlockSnapshot,
    BlocksRemoved,
    BlocksStored,
    SnapshotRequest,
)
from shared.wire.codec import Message
from shared.wire.requests import Placement, PlacementEnded, Refused
from shared.wire.workers import Heartbeat

_TICK_S: Final = 0.25
_SETTLE_BEATS: Final = 1.5
_SNAPSHOT_TIMEOUT_S: Final = 5.0
_MAX_SNAPSHOTS: Final = 64
_ORDER_TIMEOUT_S: Final = 2.0
_PRESENCE_TIMEOUT_S: Final = 1.0
_NO_PART: Final = SnapshotRequest(1_000_000)


class SchedulerApp:
    """One scheduler process. `run` follows the cluster until it is told to stop, and answers
    while it holds the lease."""

    role = "scheduler"

    def __init__(self, scope: Scope, config: SchedulerConfig) -> None:
        self._scope = scope
        self._config = config
        self._core: SchedulerMachine | None = None
        self._keeper: LeaseKeeper | None = None
        self._settled_at = 0.0
        self._snapshots: set[tuple[str, int]] = set()
        self._metrics = SchedulerMetrics(scope.metrics)
        self._done = asyncio.Event()
        self._log: EventLogFile | None = None

    async def run(self, scope: Scope) -> None:
        """Until drained. Raises StartupError when the store cannot be reached."""
        try:
            store = EpochStore(await scope.open_bucket(subjects.EPOCHS))
            await store.read_lead()
        except BusError as error:
            raise StartupError(f"the epoch store does not answer: {error.message}") from error
        self._settled_at = scope.clock.now() + _SETTLE_BEATS * self._config.heartbeat_s
        self._core = self._new_core()
        worker = WorkerId(self._config.worker_id)
        lease_s = self._config.lead_lease_s
        answering = Answering(scope, self._core, store, self._metrics, self._apply)
        self._keeper = LeaseKeeper(store, worker, lease_s, scope.clock, answering.turned)
        scope.bus.on_reconnect(lambda: self._hear(BusRestored()))
        await self._subscribe()
        holding = scope.tasks.create_task(self._keeper.run(), name="lease")
        scope.tasks.create_task(answering.run(), name="answering")
        announcing = Announcing(scope, self._core, self._keeper.leads)
        scope.tasks.create_task(announcing.run(), name="announcing")
        await self._tick_until_done(self._core, self._keeper)
        self._keeper.resign()
        await asyncio.wait({holding})
        if self._log is not None:
            self._log.close()
            self._log = None

    async def _tick_until_done(self, core: SchedulerMachine, keeper: LeaseKeeper) -> None:
        collecting, placed = Collecting(), core.deciding.sequence
        try:
            while not self._done.is_set():
                self._observe_bus()
                self._apply(Tick())
                self._metrics.show(core, self._scope.clock.now(), leading=keeper.leads())
                collecting.tick(asked=core.deciding.sequence != placed)
                placed = core.deciding.sequence
                await asyncio.sleep(_TICK_S)
        finally:
            collecting.stop()

    def ready(self) -> bool:
        """Leading or standing by, connected, and long enough here to have heard every worker."""
        settled = self._core is not None and self._scope.clock.now() >= self._settled_at
        known = self._keeper is not None and self._keeper.knows_a_leader()
        return settled and known and self._scope.bus.connected

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
            "leading": self._keeper is not None and self._keeper.leads(),
            "leader_epoch": core.roster.leader_epoch if core else 0,
            "kept_out": core.poison.kept_out if core else 0,
        }

    def view(self, name: str) -> object | None:
        """GET /admin/models, /admin/placements, /admin/index, /admin/balance."""
        return None if self._core is None else views.view(self._core, name)

    async def drain(self) -> None:
        """A scheduler holds nothing that must be finished, but its lease."""
        self._done.set()

    # -- inside ------------------------------------------------------------------------

    def _new_core(self) -> SchedulerMachine:
        config = self._config
        settings = SchedulerSettings(
            leader_epoch=Epoch(0),
            lost_after_s=config.lost_after_s,
            settled_at=self._settled_at,
            route=config.route,
            placement=config.placement(),
            retries=RetrySettings(config.retry_share, config.retry_floor),
            index_bytes=config.index_bytes,
            balance=config.balance(),
            reconnect_s=config.reconnect_s,
        )
        if config.event_log:
            path = Path(config.event_log.replace("{worker}", config.worker_id))
            self._log = EventLogFile(path, settings, config.seed)
        return SchedulerMachine(settings, random.Random(config.seed))

    async def _subscribe(self) -> None:
        bus = self._scope.bus
        await bus.subscribe(subjects.HEARTBEATS, self._take_in, concurrency=1)
        await bus.subscribe(subjects.BLOCK_EVENTS, self._take_in, concurrency=1)
        await bus.subscribe(subjects.PLACEMENT_ENDED, self._take_in)
        await bus.watch(lambda role, name: self._hear(Disconnected(WorkerId(name), role)))

    async def _take_in(self, delivery: Delivery) -> None:
        """Reports count only on the subject of the worker that they name: the server lets a
        credential publish on subjects of its own role."""
        match delivery.message:
            case Heartbeat() as beat if delivery.subject == subjects.heartbeat(
                beat.role, beat.worker
            ):
                self._apply(beat)
            case BlocksStored() | BlocksRemoved() | BlocksCleared() as event if (
                delivery.subject.rsplit(".", 1)[-1] == event.worker
            ):
                self._apply(event)
            case PlacementEnded() as ended:
                self._metrics.ended(ended)
                self._apply(ended)
            case _:
                self._metrics.refused.inc()

    def _hear(self, event: Event) -> None:
        self._apply(event)

    def _observe_bus(self) -> None:
        """Silence while disconnected proves nothing; the reconnect callback says when it does."""
        if not self._scope.bus.connected:
            self._apply(BusLost())

    def _apply(self, event: Event) -> Placement | Refused | None:
        """Run one event through the core and start what it asks for. The answer, if one came.
        Whether we still lead is looked at first: an expired lease is noticed before it is used."""
        core, keeper = self._core, self._keeper
        if core is None or keeper is None:
            return None
        keeper.leads()
        answer: Placement | Refused | None = None
        now = self._scope.clock.now()
        actions = core.handle(event, now)
        if self._log is not None:
            self._log.write(now, event, actions)
        for action in actions:
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
                self._metrics.declared(lost)
                self._scope.tasks.create_task(self._publish(subjects.LOST, lost), name="declare")
            case AskSnapshot():
                key = (action.worker, action.chunk)
                if key not in self._snapshots and len(self._snapshots) < _MAX_SNAPSHOTS:
                    self._snapshots.add(key)
                    self._scope.tasks.create_task(self._snapshot(action, key), name="snapshot")
            case OrderSwitch():
                self._scope.tasks.create_task(self._order(action), name="order")
            case Planned(event, worker, to, reason):
                self._scope.log.event(event, peer=worker, to=to, reason=reason)
            case AskPresence():
                self._scope.tasks.create_task(self._look_for(action), name="presence")
            case Answer():
                raise AssertionError("an answer has no task")

    async def _publish(self, subject: str, message: Message) -> None:
        try:
            await self._scope.bus.publish(subject, message, Headers())
        except BusError:
            self._scope.log.event("scheduler.unsent", level="warning", subject=subject)

    async def _order(self, action: OrderSwitch) -> None:
        """Silence is no answer: the order is repeated, and heartbeats tell what became of it."""
        order = action.order
        try:
            reply = await self._scope.bus.request(
                subjects.switch(action.role, order.worker), order, Headers(), _ORDER_TIMEOUT_S
            )
        except BusError:
            return
        refusal = reply.message if isinstance(reply, Refused) else ""
        self._apply(SwitchAnswered(order.worker, order.epoch, refusal))

    async def _snapshot(self, ask: AskSnapshot, key: tuple[str, int]) -> None:
        """Ask one part; whatever goes wrong, the next heartbeat may start again."""
        try:
            reply = await self._scope.bus.request(
                subjects.snapshot(ask.role, ask.worker),
                SnapshotRequest(ask.chunk, ask.sequence),
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

    async def _look_for(self, ask: AskPresence) -> None:
        """Any answer is a sign of life: also the refusal of a part of no snapshot."""
        await asyncio.sleep(ask.after_s)
        present: bool | None = True
        try:
            subject = subjects.snapshot(ask.role, ask.worker)
            await self._scope.bus.request(subject, _NO_PART, Headers(), _PRESENCE_TIMEOUT_S)
        except NoResponder:
            present = False
        except BusError:
            present = None
        self._apply(Presence(ask.worker, ask.role, ask.epoch, present))
