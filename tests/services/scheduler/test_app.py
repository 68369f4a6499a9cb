"""The scheduler's shell and store: epochs, placements and snapshots over a bus."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from services.scheduler.app import SchedulerApp
from services.scheduler.config import SchedulerConfig
from services.scheduler.store import EpochStore
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.errors import BusError, Code, RefusedError
from shared.ids import Epoch, WorkerId
from shared.wire import subjects
from shared.wire.blocks import BlockSnapshot, BlocksStored, SnapshotRequest
from shared.wire.codec import Message
from shared.wire.requests import Placement, Refused
from shared.wire.workers import Registered, RegisterWorker, WorkerLost
from tests.builders import running, scope_on, start, until
from tests.services.scheduler.builders import ask, beat, names

CONFIG = SchedulerConfig(
    worker_id="scheduler-0", heartbeat_s=0.1, lost_after_s=1.0, otlp_endpoint=None
)


async def lead(
    broker: MemoryBroker,
    tasks: asyncio.TaskGroup,
    folder: Path,
    config: SchedulerConfig = CONFIG,
) -> SchedulerApp:
    scope = scope_on(broker, tasks, "scheduler", config, folder)
    app = SchedulerApp(scope, config)
    await start(app, scope)
    return app


async def test_epochs_grow_and_the_same_incarnation_keeps_its_own(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with running() as tasks:
        await lead(broker, tasks, tmp_path)
        bus = MemoryBus(broker, "decode-0", "decode")

        async def register(incarnation: str) -> Message:
            wish = RegisterWorker(WorkerId("decode-0"), "decode", incarnation)
            return await bus.request(subjects.register("decode", wish.worker), wish, Headers(), 2.0)

        first, again, other = [await register(name) for name in ("a", "a", "b")]
        assert isinstance(first, Registered) and first.epoch == 1
        assert again == first
        assert isinstance(other, Registered) and other.epoch == 2


async def test_a_name_of_another_role_cannot_be_taken(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with running() as tasks:
        await lead(broker, tasks, tmp_path)
        pool = MemoryBus(broker, "kvpool-0", "kvpool")
        forged = RegisterWorker(WorkerId("decode-0"), "decode", "x")
        reply = await pool.request(
            subjects.register("kvpool", forged.worker), forged, Headers(), 2.0
        )
        assert isinstance(reply, Refused) and reply.code == "invalid_parameter"
        with pytest.raises(BusError, match="may not publish"):
            await pool.request(subjects.register("decode", forged.worker), forged, Headers(), 2.0)


async def test_concurrent_registrations_take_different_epochs() -> None:
    bucket = await MemoryBus(MemoryBroker(), "s", "scheduler").key_value(subjects.EPOCHS)
    store = EpochStore(bucket)
    async with asyncio.TaskGroup() as tasks:
        taken = [
            tasks.create_task(store.take(WorkerId("w"), f"i{n}"), name=f"take-{n}")
            for n in range(8)
        ]
    assert sorted(task.result() for task in taken) == list(range(1, 9))


async def test_a_late_copy_of_a_registration_does_not_put_out_the_living() -> None:
    bucket = await MemoryBus(MemoryBroker(), "s", "scheduler").key_value(subjects.EPOCHS)
    store, worker = EpochStore(bucket), WorkerId("w")
    assert await store.take(worker, "old") == 1
    assert await store.take(worker, "new") == 2
    with pytest.raises(RefusedError) as refused:
        await store.take(worker, "old")
    assert refused.value.code is Code.STALE
    assert await store.take(worker, "new") == 2
    for number in range(40):
        assert await store.take(worker, f"later-{number}") == 3 + number


async def test_a_gateway_gets_a_placement_over_the_bus(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with running() as tasks:
        app = await lead(broker, tasks, tmp_path)
        gateway = MemoryBus(broker, "gateway-0", "gateway")
        reply = await gateway.request(subjects.PLACE, ask(), Headers(), 2.0)
        assert isinstance(reply, Refused) and reply.code == "no_worker"
        for worker in ("prefill-0", "decode-0"):
            role = worker.split("-")[0]
            sender = MemoryBus(broker, worker, role)
            await sender.publish(
                subjects.heartbeat(role, WorkerId(worker)), beat(worker), Headers()
            )
        await until(lambda: len(app.accounting()["workers"]) == 2)  # type: ignore[arg-type]
        reply = await gateway.request(subjects.PLACE, ask("r2"), Headers(), 2.0)
        assert isinstance(reply, Placement) and reply.route == "disaggregated"
        assert app.accounting()["charges"] == 2


async def test_a_gap_is_repaired_from_the_worker_itself(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with running() as tasks:
        app = await lead(broker, tasks, tmp_path)
        worker = MemoryBus(broker, "prefill-0", "prefill")
        name = WorkerId("prefill-0")

        async def snapshot(delivery: Delivery) -> Message:
            assert isinstance(delivery.message, SnapshotRequest)
            part = names(1, 2) if delivery.message.chunk == 0 else names(3)
            return BlockSnapshot(name, Epoch(1), 9, "device", delivery.message.chunk, 2, part)

        await worker.subscribe(subjects.snapshot("prefill", name), snapshot)
        await worker.publish(subjects.heartbeat("prefill", name), beat("prefill-0"), Headers())
        await until(lambda: "prefill-0" in app.accounting()["workers"])  # type: ignore[operator]
        event = BlocksStored(name, Epoch(1), 9, "device", None, names(3))
        await worker.publish(subjects.block_events("prefill", name), event, Headers())
        await until(lambda: app.accounting()["index_blocks"] == 3)


class Listening:
    """A gateway that hears who is lost, and a worker that has beaten once."""

    def __init__(self, broker: MemoryBroker, app: SchedulerApp) -> None:
        self.worker = MemoryBus(broker, "decode-0", "decode")
        self._gateway = MemoryBus(broker, "gateway-0", "gateway")
        self._app = app
        self._heard: list[Message] = []

    async def begin(self) -> None:
        await self._gateway.subscribe(subjects.LOST, self._lost)
        subject = subjects.heartbeat("decode", WorkerId("decode-0"))
        await self.worker.publish(subject, beat("decode-0"), Headers())
        await until(lambda: bool(self._app.accounting()["workers"]))

    async def cause(self) -> str:
        """Why that worker was declared lost."""
        await until(lambda: bool(self._heard))
        (message,) = self._heard
        assert isinstance(message, WorkerLost) and message.worker == "decode-0"
        return message.cause

    async def _lost(self, delivery: Delivery) -> None:
        self._heard.append(delivery.message)


async def test_a_silent_worker_is_announced(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with running() as tasks:
        stage = Listening(broker, await lead(broker, tasks, tmp_path))
        await stage.begin()
        assert await stage.cause() == "silent"


async def test_a_worker_that_loses_power_is_announced_before_its_silence(tmp_path: Path) -> None:
    broker, patient = MemoryBroker(), dataclasses.replace(CONFIG, lost_after_s=600.0)
    async with running() as tasks:
        stage = Listening(broker, await lead(broker, tasks, tmp_path, patient))
        await stage.begin()
        stage.worker.vanish()
        assert await stage.cause() == "disconnected"
