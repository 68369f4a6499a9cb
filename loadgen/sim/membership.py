"""A simulated process's standing with the scheduler: epoch, heartbeats, block events, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from loadgen.sim.bus import Answer, Respond
from loadgen.sim.judge import Violation
from loadgen.sim.process import Process
from loadgen.sim.sender import Sending
from shared.bus.headers import Headers
from shared.errors import RefusedError
from shared.ids import BlockHash, Epoch, WorkerId
from shared.kv.radix import Removed, Stored
from shared.runtime.journal import BlockJournal
from shared.runtime.leader import Leader
from shared.wire import subjects
from shared.wire.blocks import SnapshotRequest
from shared.wire.codec import Message
from shared.wire.requests import Refused
from shared.wire.workers import (
    CostModel,
    Heartbeat,
    Registered,
    RegisterWorker,
    StepSample,
    WorkerLoad,
    WorkerLost,
)

_ASKING_S: Final = 4.0
_DEFERRED_S: Final = 0.5


FREE: Final = CostModel(0.0, 0.0, 0.0, 0.0, 0.0)
"""Of a role that computes nothing."""


class Report(Protocol):
    """The worker's own truth, asked at each heartbeat."""

    def load(self) -> WorkerLoad: ...
    def blocks(self) -> tuple[BlockHash, ...]: ...
    def digest(self) -> tuple[int, str]: ...
    def steps(self) -> tuple[StepSample, ...]: ...


@dataclass(frozen=True, slots=True)
class Traits:
    """What a role says of itself."""

    plane_address: str = ""
    tier: str = "device"
    cost: CostModel = FREE


class Membership:
    """One incarnation's membership. `joined` is called once, with the epoch."""

    def __init__(
        self, process: Process, traits: Traits, report: Report, joined: Callable[[Epoch], None]
    ) -> None:
        self.worker = WorkerId(process.name)
        self._process = process
        self._traits = traits
        self._report = report
        self._joined = joined
        self._journal = BlockJournal(self.worker, traits.tier, report)
        self.headers = Headers(epoch=self._journal.epoch)
        """Of what this incarnation sends: its epoch."""
        self._beats = 0
        self._peers_lost: set[WorkerId] = set()
        self._leader = Leader()

    @property
    def epoch(self) -> Epoch:
        return self._journal.epoch

    def join(self) -> None:
        """Take an epoch, asking until a scheduler answers."""
        process = self._process
        message = RegisterWorker(self.worker, process.role, f"{process.address}")
        until_s = process.now() + _ASKING_S
        subject = subjects.register(process.role, self.worker)
        Sending(process, subject, message, Headers(), self._registered, until_s).attempt()

    def publish_blocks(self, events: Iterable[Stored | Removed]) -> None:
        self._journal.record(events)
        self._send_events()

    def peer_lost(self, peer: WorkerId) -> None:
        self._peers_lost.add(peer)

    def declared_lost(self, lost: WorkerLost) -> bool:
        """Whether nobody else here needs to know: an older leader says so, who buries nobody, or
        it is about ourselves. Silence is disproved at once; a newer incarnation under our name
        would mean that this process has to end, but here there is none."""
        if not self._leader.accepts(lost.leader_epoch, self._process.now()):
            return True
        if lost.worker != self.worker or self.epoch == 0:
            return False
        if lost.epoch >= self.epoch:
            if lost.cause == "replaced":
                text = f"{self._process.address} was replaced, although it is the newest"
                raise Violation("I9", text)
            self.beat()
        return True

    def beat(self) -> None:
        """Say that we live, with all figures."""
        if self.epoch == 0:
            return
        self._beats += 1
        peers = tuple(sorted(self._peers_lost))
        self._peers_lost.clear()
        subject = subjects.heartbeat(self._process.role, self.worker)
        self._publish(subject, self._heartbeat(peers))

    # -- inside ----------------------------------------------------------------------------

    def _registered(self, answer: Answer) -> None:
        if not isinstance(answer, Registered):
            self._process.later(_DEFERRED_S, self.join)
            return
        if self.epoch:
            return
        self._journal.epoch = answer.epoch
        self.headers = Headers(epoch=answer.epoch)
        self._leader.accepts(answer.leader_epoch, self._process.now())
        if self._process.role != "gateway":
            subject = subjects.snapshot(self._process.role, self.worker)
            self._process.scene.bus.subscribe(self._process, subject, self._answer_snapshot)
        self._joined(answer.epoch)
        self._beat_on()

    def _beat_on(self) -> None:
        self._send_events()
        self.beat()
        self._process.later(self._process.scene.pace.heartbeat_s, self._beat_on)

    def _send_events(self) -> None:
        if self.epoch == 0:
            return
        subject = subjects.block_events(self._process.role, self.worker)
        while event := self._journal.next():
            self._publish(subject, event)

    def _publish(self, subject: str, message: Message) -> None:
        process = self._process
        process.scene.bus.publish(process, subject, message, self.headers)

    def _answer_snapshot(self, message: Message, _: Headers, respond: Respond) -> None:
        if not isinstance(message, SnapshotRequest):
            return
        try:
            respond(self._journal.part(message.chunk, message.sequence))
        except RefusedError as error:
            respond(Refused(error.code.value, error.message))

    def _heartbeat(self, peers_lost: tuple[WorkerId, ...]) -> Heartbeat:
        served = self._process.scene.works.model
        gateway = self._process.role == "gateway"
        return Heartbeat(
            worker=self.worker,
            role=self._process.role,
            epoch=self.epoch,
            sequence=self._beats,
            state="ready",
            model_digest="" if gateway else served.digest,
            layout_digest="" if gateway else served.layout_digest,
            block_tokens=served.block_tokens,
            plane_address=self._traits.plane_address,
            probe_port=0,
            load=self._report.load(),
            cost=self._traits.cost,
            blocks=self._journal.count(),
            peers_lost=peers_lost,
            page_bytes=served.page_bytes,
            steps=self._report.steps(),
            links=self._process.scene.plane.measured(self._process.name),
        )


NO_LOAD: Final = WorkerLoad(0, 0, 0, 0.0, 0, 0, 0)
NO_BLOCKS: Final = f"{0:032x}"
