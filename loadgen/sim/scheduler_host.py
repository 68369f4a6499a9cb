"""A simulated scheduler, leading or standing by: the real cores of placement and leadership."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from loadgen.sim.bus import Answer, Respond, Silence
from loadgen.sim.case import Shape
from loadgen.sim.lead import Lead
from loadgen.sim.process import Process
from loadgen.sim.scene import Scene
from loadgen.sim.worker import Worker
from services.scheduler.core import events as ev
from services.scheduler.core.balance.balance import OrderSwitch, Planned
from services.scheduler.core.leadership import StepBack, TakeLead
from services.scheduler.core.machine import SchedulerMachine, SchedulerSettings
from services.scheduler.core.placement.settings import PlacementSettings
from services.scheduler.core.placement.weights import Weights
from shared.bus.headers import Headers
from shared.errors import Code
from shared.ids import Epoch, RequestId, WorkerId
from shared.wire import subjects
from shared.wire.blocks import (
    BlocksCleared,
    BlockSnapshot,
    BlocksRemoved,
    BlocksStored,
    SnapshotRequest,
)
from shared.wire.codec import Message
from shared.wire.requests import PlacementEnded, PlaceRequest, Refused
from shared.wire.workers import Heartbeat, Registered, RegisterWorker

_SETTLE_BEATS: Final = 1.5
_SNAPSHOT_S: Final = 2.0
_STORE_S: Final = 0.5
_NO_PART: Final = SnapshotRequest(1_000_000)
_AGAIN_S: Final = 0.25


def _placement(shape: Shape) -> PlacementSettings:
    below = shape.colocate_below_tokens
    if not shape.policy:
        return PlacementSettings(below)
    return PlacementSettings(
        below,
        policy=shape.policy,
        split=shape.split,
        admission=shape.admission,
        objectives=shape.admission != "none",
        weights=Weights(ttft_slo_s=shape.ttft_slo_s, tpot_slo_s=shape.tpot_slo_s),
    )


class SchedulerHost(Process):
    """One incarnation."""

    role = "scheduler"

    def __init__(self, scene: Scene, name: str, incarnation: int) -> None:
        super().__init__(scene, name, incarnation)
        settings = SchedulerSettings(
            leader_epoch=Epoch(0),
            lost_after_s=scene.pace.lost_after_s,
            settled_at=self.now() + _SETTLE_BEATS * scene.pace.heartbeat_s,
            route="auto",
            placement=_placement(scene.case.shape),
        )
        self.machine = SchedulerMachine(settings, self.chance)
        self._lead = Lead(self, self._turned)
        self._answering = False
        self._reply: ev.Answer | None = None
        self._asked: set[tuple[str, int]] = set()

    @property
    def leads(self) -> bool:
        return self._lead.leads()

    def start(self) -> None:
        bus = self.scene.bus
        for subject in (subjects.HEARTBEATS, subjects.BLOCK_EVENTS, subjects.PLACEMENT_ENDED):
            bus.subscribe(self, subject, self._on_report)
        bus.watch(self, lambda role, name: self._hear(ev.Disconnected(WorkerId(name), role)))
        self._lead.start()
        self._tick()

    def reconnected(self) -> None:
        self._hear(ev.BusRestored())

    def _tick(self) -> None:
        if not self.connected:
            self._hear(ev.BusLost())
        self._hear(ev.Tick())
        self.later(self.scene.pace.tick_s, self._tick)

    def _turned(self, turn: TakeLead | StepBack) -> None:
        """Questions reach only the leader; one whose lease lapsed sends them away for a moment."""
        bus = self.scene.bus
        match turn:
            case StepBack(cause=cause):
                self.feed(ev.LeadLost())
                if self._answering and cause != "lapsed":
                    self._answering = False
                    bus.unsubscribe(self, subjects.REGISTRATIONS, subjects.PLACE)
            case TakeLead(epoch, deposed):
                if not self._answering:
                    self._answering = True
                    bus.subscribe(self, subjects.REGISTRATIONS, self._on_register)
                    bus.subscribe(self, subjects.PLACE, self._on_place)
                if deposed is None:
                    self.feed(ev.LeadTaken(epoch))
                else:
                    self.scene.fired["lead_taken_over"] += 1
                    self.feed(ev.LeadTaken(epoch, deposed.worker, deposed.epoch))

    # -- the core --------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> Sequence[ev.Action]:
        return self.machine.handle(event, now)

    def check(self) -> None:
        self.machine.check()

    def story(self, request: str) -> str:
        return self.machine.story(RequestId(request))

    @property
    def at_work(self) -> bool:
        return self.machine.cluster.charges() > 0

    @property
    def missed(self) -> bool:
        return self.leads

    def leftovers(self) -> list[str]:
        charges = self.machine.cluster.charges()
        left = [f"charges: {charges}"] if charges else []
        held: set[str] = set()
        for process in self.scene.processes.values():
            if isinstance(process, Worker):
                left += self._unknown(process)
                held.update(process.blocks())
        if self.machine.index.blocks != len(held):
            left.append(f"{self.machine.index.blocks} blocks known, {len(held)} held")
        return left

    def tally(self) -> dict[str, int]:
        return {"stale_refused": self.machine.counts["stale_heartbeats"]}

    def _unknown(self, worker: Worker) -> list[str]:
        """What this scheduler does not know of a living worker."""
        known = self.machine.cluster.get(worker.membership.worker)
        if known is None or known.ref != worker.ref or not known.ready:
            return [f"{worker.address} is not known as ready"]
        found = [self.machine.index.depths([block], self.now()) for block in worker.blocks()]
        if all(worker.name in depths for depths in found):
            return []
        return [f"not all blocks of {worker.address} are known"]

    # -- what comes in ---------------------------------------------------------------------

    def _hear(self, event: ev.Event) -> None:
        """An expired lease is noticed before it is used."""
        self._lead.leads()
        self.feed(event)

    def _on_register(self, message: Message, _: Headers, respond: Respond) -> None:
        if not isinstance(message, RegisterWorker):
            return
        bucket = self.scene.bucket
        known = self.machine.cluster.epoch_of(message.worker)

        def taken(epoch: Epoch | Silence | None) -> None:
            if epoch is None or isinstance(epoch, Silence):
                code = Code.STALE if epoch is None else Code.CONTROL_PLANE_DOWN
                respond(Refused(code.value, "no epoch for this process"))
                return
            leader = Epoch(self.machine.roster.leader_epoch)
            respond(Registered(message.worker, epoch, leader))

        take = lambda: bucket.take(message.worker, message.incarnation, known)  # noqa: E731
        self.scene.bus.exchange(self, take, _STORE_S, taken)

    def _on_report(self, message: Message, _: Headers, __: Respond) -> None:
        match message:
            case Heartbeat() | BlocksStored() | BlocksRemoved() | BlocksCleared():
                self._hear(message)
            case PlacementEnded():
                self._hear(message)
            case _:
                pass

    def _on_place(self, message: Message, _: Headers, respond: Respond) -> None:
        if not isinstance(message, PlaceRequest):
            return
        self._reply = None
        self._hear(message)
        if self._reply is None:
            respond(Refused(Code.LOADING.value, "this scheduler does not lead now", _AGAIN_S))
        else:
            respond(self._reply.reply)

    # -- what goes out ---------------------------------------------------------------------

    def perform(self, action: ev.Action) -> None:
        match action:
            case ev.Answer():
                self._reply = action
            case ev.Declare(lost):
                self.scene.judge.declared.add((lost.worker, lost.epoch))
                self.scene.bus.publish(self, subjects.LOST, lost, Headers())
            case ev.AskSnapshot():
                self._ask_snapshot(action)
            case OrderSwitch() | Planned():
                pass  # no planner acts in these worlds
            case ev.AskPresence():
                self.later(action.after_s, lambda: self._look_for(action))
            case _:
                assert_never(action)

    def _ask_snapshot(self, action: ev.AskSnapshot) -> None:
        key = (action.worker, action.chunk)
        if key in self._asked:
            return
        self._asked.add(key)

        def answered(answer: Answer) -> None:
            self._asked.discard(key)
            if isinstance(answer, BlockSnapshot):
                self._hear(answer)
            else:
                self._hear(ev.SnapshotFailed(action.worker, action.epoch))

        subject = subjects.snapshot(action.role, action.worker)
        message = SnapshotRequest(action.chunk, action.sequence)
        self.scene.bus.request(self, subject, message, Headers(), _SNAPSHOT_S, answered)

    def _look_for(self, ask: ev.AskPresence) -> None:
        def answered(answer: Answer) -> None:
            unknown = answer in (Silence.UNAVAILABLE, Silence.TIMEOUT)
            present = None if unknown else answer is not Silence.NO_RESPONDER
            self._hear(ev.Presence(ask.worker, ask.role, ask.epoch, present))

        subject = subjects.snapshot(ask.role, ask.worker)
        self.scene.bus.request(self, subject, _NO_PART, Headers(), _SNAPSHOT_S, answered)
