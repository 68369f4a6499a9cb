"""Two schedulers over one bus and one bucket: who answers, and who takes over."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from services.scheduler.app import SchedulerApp
from services.scheduler.config import SchedulerConfig
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.errors import BusError, NoResponder
from shared.ids import WorkerId
from shared.runtime.service import Scope
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import Placement, PlaceRequest, Refused
from shared.wire.workers import WorkerLost
from tests.builders import running, scope_on, start, until
from tests.services.scheduler.builders import ask, beat

CONFIG = SchedulerConfig(
    worker_id="scheduler-0",
    heartbeat_s=0.1,
    lost_after_s=5.0,
    lead_lease_s=0.6,
    otlp_endpoint=None,
)


class Pair:
    """A leader, its standby, two workers that beat, and a gateway that asks."""

    def __init__(self, tasks: asyncio.TaskGroup, folder: Path) -> None:
        self.broker = MemoryBroker()
        self.tasks = tasks
        self.folder = folder
        self.gateway = MemoryBus(self.broker, "gateway-0", "gateway")
        self.lost: list[WorkerLost] = []

    async def begin(self) -> None:
        self.leader, self.leader_scope = await self.start("scheduler-0")
        await self.gateway.subscribe(subjects.LOST, self._hear)
        self.standby, self.standby_scope = await self.start("scheduler-1")
        self.tasks.create_task(self._beat(), name="beats")
        for app in (self.leader, self.standby):
            await until(lambda app=app: len(app.accounting()["workers"]) == 2)  # type: ignore[misc]

    async def start(self, name: str) -> tuple[SchedulerApp, Scope]:
        config = replace(CONFIG, worker_id=name)
        scope = scope_on(self.broker, self.tasks, "scheduler", config, self.folder)
        app = SchedulerApp(scope, config)
        await start(app, scope)
        return app, scope

    async def place(self, request: PlaceRequest) -> Placement:
        """As a gateway does: again while nobody listens."""
        async with asyncio.timeout(5):
            while True:
                try:
                    reply = await self.gateway.request(subjects.PLACE, request, Headers(), 1.0)
                except NoResponder:
                    await asyncio.sleep(0.02)
                    continue
                if isinstance(reply, Placement):
                    return reply
                assert isinstance(reply, Refused) and reply.code == "loading", reply
                await asyncio.sleep(0.02)

    def leaders(self, epoch: int) -> list[SchedulerApp]:
        """Who leads now, in this epoch."""
        told = ((app, app.accounting()) for app in (self.leader, self.standby))
        return [app for app, now in told if now["leading"] and now["leader_epoch"] == epoch]

    async def _beat(self) -> None:
        buses = {n: MemoryBus(self.broker, n, n.split("-")[0]) for n in ("prefill-0", "decode-0")}
        for sequence in range(1, 10_000):
            for name, bus in buses.items():
                subject = subjects.heartbeat(name.split("-")[0], WorkerId(name))
                with suppress(BusError):
                    await bus.publish(subject, beat(name, sequence=sequence), Headers())
            await asyncio.sleep(0.05)

    async def _hear(self, delivery: Delivery) -> Message | None:
        if isinstance(delivery.message, WorkerLost):
            self.lost.append(delivery.message)
        return None


async def test_the_standby_takes_over_from_a_leader_that_vanished(tmp_path: Path) -> None:
    async with running() as tasks:
        pair = Pair(tasks, tmp_path)
        await pair.begin()
        assert (await pair.place(ask("a"))).leader_epoch == 1
        assert not pair.standby.accounting()["leading"]
        assert isinstance(pair.leader_scope.bus, MemoryBus)
        pair.leader_scope.bus.vanish()
        placement = await pair.place(ask("b"))
        assert placement.leader_epoch == 2 and placement.route == "disaggregated"
        await until(lambda: bool(pair.lost))
        assert [(m.worker, m.role, m.epoch, m.leader_epoch) for m in pair.lost] == [
            ("scheduler-0", "scheduler", 1, 2)
        ]
        await until(lambda: not pair.leader.accounting()["leading"])
        assert pair.leader_scope.metrics.value("baton_leader_turns_total", to="lapsed") == 1
        await until(lambda: pair.standby_scope.metrics.value("baton_leader") == 1)


async def test_a_leader_that_ends_hands_over_at_once(tmp_path: Path) -> None:
    async with running() as tasks:
        pair = Pair(tasks, tmp_path)
        await pair.begin()
        await pair.leader.drain()
        await until(
            lambda: bool(pair.standby.accounting()["leading"]), timeout_s=CONFIG.lead_lease_s
        )
        assert (await pair.place(ask("b"))).leader_epoch == 2


async def test_a_bucket_that_forgets_leaves_one_leader_with_a_higher_epoch(tmp_path: Path) -> None:
    """F50: the store acknowledged writes and lost them."""
    async with running() as tasks:
        pair = Pair(tasks, tmp_path)
        await pair.begin()
        pair.broker.lose_writes(subjects.EPOCHS, 1_000)
        await until(lambda: len(pair.leaders(2)) == 1)
        assert (await pair.place(ask("b"))).leader_epoch == 2


async def test_an_outage_of_the_bus_gives_the_lead_to_one_of_them_again(tmp_path: Path) -> None:
    async with running() as tasks:
        pair = Pair(tasks, tmp_path)
        await pair.begin()
        pair.broker.outage()
        await until(lambda: not pair.leader.accounting()["leading"])
        pair.broker.restore()
        placement = await pair.place(ask("b"))
        assert placement.leader_epoch in (1, 2)
        assert not [m for m in pair.lost if m.role != "scheduler"]
