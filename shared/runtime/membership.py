"""A process's standing with the scheduler: epoch, heartbeats, block events, snapshots.

One task speaks for it, so events and the heartbeats that count them keep their order. The worker
owns load, cost and blocks, and is asked for them.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.errors import BusError, Code, RefusedError, StartupError
from shared.ids import BlockHash, Epoch, WorkerId
from shared.kv.radix import Removed, Stored
from shared.runtime.journal import BlockJournal, BlockSource
from shared.runtime.leader import Leader
from shared.runtime.measured import Measured
from shared.runtime.retry import Sender
from shared.runtime.service import Scope
from shared.wire import subjects
from shared.wire.blocks import BlockSnapshot, SnapshotRequest
from shared.wire.codec import Message
from shared.wire.requests import Acknowledged, Refused
from shared.wire.workers import (
    CostModel,
    Heartbeat,
    Registered,
    RegisterWorker,
    SwitchRole,
    WorkerLoad,
    WorkerLost,
)

REGISTER_S: Final = 300.0
ASKING_S: Final = 10.0

NO_LOAD: Final = WorkerLoad(0, 0, 0, 0.0, 0, 0, 0)
NO_COST: Final = CostModel(0.0, 0.0, 0.0, 0.0, 0.0)

_FINAL: Final = (Code.INVALID_PARAMETER, Code.INCOMPATIBLE_WORKERS, Code.STALE)


@dataclass(frozen=True, slots=True)
class Traits:
    """What never changes while the process lives."""

    model_digest: str = ""
    layout_digest: str = ""
    plane_address: str = ""
    page_bytes: int = 0
    tier: str = "device"
    """Where its blocks are: 'device' or 'host'."""


class Report(BlockSource, Protocol):
    """The worker's own truth, asked at each heartbeat."""

    def load(self) -> WorkerLoad: ...

    def cost(self) -> CostModel: ...


class NothingToReport:
    """For a process without work and blocks of its own: the gateway."""

    def load(self) -> WorkerLoad:
        return NO_LOAD

    def cost(self) -> CostModel:
        return NO_COST

    def blocks(self) -> tuple[BlockHash, ...]:
        return ()

    def digest(self) -> tuple[int, str]:
        return 0, f"{0:032x}"


class Membership:
    """One incarnation's membership. `join` once; the epoch never changes after that."""

    def __init__(self, scope: Scope, traits: Traits, report: Report) -> None:
        self.worker = WorkerId(scope.settings.worker_id)
        self.measured = Measured()
        """Goes out with the next heartbeat."""
        self._scope = scope
        self._traits = traits
        self._report = report
        self._journal = BlockJournal(self.worker, traits.tier, report)
        self._state = "ready"
        self._beats = 0
        self._beat_due_s = 0.0
        self._wake = asyncio.Event()
        self._peers_lost: set[WorkerId] = set()
        self._may_serve = ""
        self._leader = Leader()
        self._fenced = scope.metrics.counter("baton_fenced_total", "Refused as outdated.", ("by",))
        self._unsent = scope.metrics.counter(
            "baton_membership_unsent_total", "Heartbeats and events that were not sent.", ("kind",)
        )

    @property
    def epoch(self) -> Epoch:
        """0 until `join` returned."""
        return self._journal.epoch

    async def join(self) -> Epoch:
        """Take an epoch (asking until a scheduler answers), then beat and answer snapshots until
        the process ends. Raises StartupError: refused for good, or no answer in five minutes."""
        scope = self._scope
        epoch = self._journal.epoch = await self._register()
        scope.log.set_epoch(epoch)
        scope.log.event("worker.registered")
        scope.run_file.update(epoch=epoch)
        if scope.role != "gateway":
            subject = subjects.snapshot(scope.role, self.worker)
            await scope.bus.subscribe(subject, self._answer_snapshot, concurrency=1)
        scope.bus.on_reconnect(self.beat_soon)
        scope.tasks.create_task(self._speak(), name="membership")
        return epoch

    async def take_orders(self, to: str) -> None:
        """From now on the leading scheduler may order this process to serve `to`."""
        subject = subjects.switch(self._scope.role, self.worker)
        await self._scope.bus.subscribe(subject, self._ordered, concurrency=1)
        self._may_serve = to
        self.beat_soon()

    def beat_soon(self) -> None:
        """Send a heartbeat now: the state changed, or the connection came back."""
        self._beat_due_s = self._scope.clock.now()
        self._wake.set()

    def set_draining(self) -> None:
        self._state = "draining"
        self.beat_soon()

    def peer_lost(self, peer: WorkerId) -> None:
        """Name a peer in the next heartbeat that could not be reached on the data plane."""
        self._peers_lost.add(peer)

    def publish_blocks(self, events: Iterable[Stored | Removed]) -> None:
        """Number the changes of the cache and send them in order. Call it right after the change,
        before the next await. What cannot be sent leaves a gap in the numbers, which the
        scheduler answers with a snapshot request."""
        self._journal.record(events)
        self._wake.set()

    def publish_cleared(self) -> None:
        """The whole cache was dropped."""
        self._journal.record_cleared()
        self._wake.set()

    def obeys(self, lost: WorkerLost) -> bool:
        """Whether the leader says so. An older one (it was paused, perhaps) buries nobody."""
        if self._leader.accepts(lost.leader_epoch, self._scope.clock.now()):
            return True
        self._fenced.labels("leader_epoch").inc()
        return False

    async def leave(self) -> None:
        """Say goodbye once, so that nobody waits for the next heartbeat."""
        self._state = "ended"
        await self._send_events()
        await self._beat()

    # -- inside ----------------------------------------------------------------------------

    async def _register(self) -> Epoch:
        scope = self._scope
        sender = Sender(scope.bus, scope.clock, random.Random(secrets.randbits(64)))
        message = RegisterWorker(self.worker, scope.role, secrets.token_hex(16))
        subject = subjects.register(scope.role, self.worker)
        give_up_s = scope.clock.now() + REGISTER_S
        while scope.clock.now() < give_up_s:
            try:
                reply = await sender.send(subject, message, Headers(), ASKING_S)
            except BusError as error:
                scope.log.event("worker.waited_for_scheduler", level="warning", error=error)
                continue
            match reply:
                case Registered():
                    self._leader.accepts(reply.leader_epoch, scope.clock.now())
                    return reply.epoch
                case Refused(code, _, retry_after_s) if code not in _FINAL:
                    scope.log.event("worker.registration_deferred", code=code)
                    await asyncio.sleep(retry_after_s or 1.0)
                case Refused(code, text):
                    raise StartupError(f"the scheduler refuses {self.worker}: {text} ({code})")
                case _:
                    raise StartupError("the scheduler answered registration with something else")
        raise StartupError(f"no scheduler registered {self.worker} within {REGISTER_S:.0f} s")

    async def _speak(self) -> None:
        scope = self._scope
        while True:
            self._wake.clear()
            await self._send_events()
            if scope.clock.now() >= self._beat_due_s:
                self._beat_due_s = scope.clock.now() + scope.settings.heartbeat_s
                await self._beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._beat_due_s - scope.clock.now())):
                    await self._wake.wait()

    async def _send_events(self) -> None:
        subject = subjects.block_events(self._scope.role, self.worker)
        while event := self._journal.next():
            await self._publish(subject, event, "event")

    async def _beat(self) -> None:
        self._beats += 1
        message = self._heartbeat(tuple(sorted(self._peers_lost)))
        self._peers_lost.clear()
        await self._publish(subjects.heartbeat(self._scope.role, self.worker), message, "heartbeat")

    def _heartbeat(self, peers_lost: tuple[WorkerId, ...]) -> Heartbeat:
        traits = self._traits
        steps, links = self.measured.take()
        return Heartbeat(
            worker=self.worker,
            role=self._scope.role,
            epoch=self.epoch,
            sequence=self._beats,
            state="stuck" if self._scope.liveness.obstacle else self._state,
            model_digest=traits.model_digest,
            layout_digest=traits.layout_digest,
            block_tokens=self._scope.settings.block_tokens,
            plane_address=traits.plane_address,
            probe_port=self._scope.probe_port,
            load=self._report.load(),
            cost=self._report.cost(),
            blocks=self._journal.count(),
            peers_lost=peers_lost,
            page_bytes=traits.page_bytes,
            steps=steps,
            links=links,
            switchable=bool(self._may_serve),
            turning=self._scope.turning.to,
        )

    async def _publish(self, subject: str, message: Message, kind: str) -> None:
        try:
            await self._scope.bus.publish(subject, message, Headers(epoch=self.epoch))
        except BusError:
            self._unsent.labels(kind).inc()

    async def _ordered(self, delivery: Delivery) -> Acknowledged:
        """Drain and come back in the other role. Only this incarnation, only from the leader."""
        order = delivery.message
        if not isinstance(order, SwitchRole):
            raise RefusedError("not an order to serve another role", Code.INVALID_PARAMETER)
        if (order.worker, order.epoch) != (self.worker, self.epoch):
            raise RefusedError("the incarnation that this is for is gone", Code.STALE)
        if not self._leader.accepts(order.leader_epoch, self._scope.clock.now()):
            self._fenced.labels("leader_epoch").inc()
            raise RefusedError("a newer scheduler leads", Code.STALE)
        if order.to != self._may_serve:
            raise RefusedError("this worker cannot serve that role", Code.INVALID_PARAMETER)
        if self._scope.stopping.is_set() or self._state != "ready":
            if self._scope.turning.to == order.to:
                return Acknowledged()
            raise RefusedError("the worker is draining", Code.DRAINING)
        self._scope.log.event("worker.turning", to=order.to)
        self._scope.turning.begin(order.to)
        self.beat_soon()
        return Acknowledged()

    async def _answer_snapshot(self, delivery: Delivery) -> BlockSnapshot:
        if not isinstance(delivery.message, SnapshotRequest):
            raise RefusedError("only snapshots are answered here", Code.INVALID_PARAMETER)
        return self._journal.part(delivery.message.chunk, delivery.message.sequence)
