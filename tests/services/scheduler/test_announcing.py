"""What gateways are told about the cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.ids import WorkerId
from shared.wire import subjects
from shared.wire.workers import ClusterStatus
from tests.builders import running, scope_on, start, until
from tests.services.scheduler.builders import beat, machine
from tests.services.scheduler.test_app import CONFIG, SchedulerApp


@pytest.mark.parametrize(
    ("route", "workers", "expected"),
    [
        ("auto", ["prefill-0"], ()),
        ("auto", ["decode-0"], ("model",)),
        ("colocated", ["decode-0"], ("model",)),
        ("disaggregated", ["decode-0"], ()),
        ("disaggregated", ["decode-0", "prefill-0"], ("model",)),
    ],
)
def test_a_model_is_servable_where_its_route_is(
    route: str, workers: list[str], expected: tuple[str, ...]
) -> None:
    core = machine(route=route)
    for worker in workers:
        core.handle(beat(worker), 0.0)
    assert core.servable() == expected


def test_who_drains_serves_nothing_new() -> None:
    core = machine()
    core.handle(beat("decode-0", model="a"), 0.0)
    core.handle(beat("decode-1", model="b"), 0.0)
    assert core.servable() == ("a", "b")
    core.handle(beat("decode-0", model="a", state="draining", sequence=2), 1.0)
    assert core.servable() == ("b",)


async def test_gateways_hear_of_each_change(tmp_path: Path) -> None:
    broker, told = MemoryBroker(), list[ClusterStatus]()
    async with running() as tasks:
        gateway = MemoryBus(broker, "gateway-0", "gateway")

        async def hear(delivery: Delivery) -> None:
            assert isinstance(delivery.message, ClusterStatus)
            told.append(delivery.message)

        await gateway.subscribe(subjects.SERVING, hear)
        config = replace(CONFIG, heartbeat_s=0.05)
        scope = scope_on(broker, tasks, "scheduler", config, tmp_path)
        await start(SchedulerApp(scope, config), scope)
        await until(lambda: len(told) >= 3)
        assert {status.models for status in told} == {()}
        worker = MemoryBus(broker, "decode-0", "decode")
        subject = subjects.heartbeat("decode", WorkerId("decode-0"))
        await worker.publish(subject, beat("decode-0"), Headers())
        await until(lambda: told[-1].models == ("model",))
        await until(lambda: told[-1].models == ())
        assert told[-1].leader_epoch > 0
