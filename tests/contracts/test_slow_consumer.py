"""F51 on a real server: a scheduler that falls behind loses block events, counts them, sees the
gap in their numbers, and reads the worker's blocks anew.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from services.scheduler.app import SchedulerApp
from services.scheduler.config import SchedulerConfig
from shared.bus import receiver
from shared.bus.memory_broker import MemoryBroker
from shared.bus.nats import NatsBus
from shared.bus.server import NatsServer
from shared.bus.traffic import Traffic
from shared.config import ProcessSettings
from shared.ids import BlockHash
from shared.kv.radix import Stored
from shared.runtime.membership import NO_COST, NO_LOAD, Membership, Traits
from shared.runtime.service import Scope
from shared.wire.workers import CostModel, WorkerLoad
from tests.contracts.wires import until
from tests.shared.runtime.rig import make_scope

pytestmark = pytest.mark.process

BURST = 400


class Blocks:
    """Implements Report: that many findable blocks, one below the other."""

    def __init__(self) -> None:
        self.names: list[BlockHash] = []

    def grow(self, count: int) -> list[Stored]:
        first = len(self.names)
        fresh = [BlockHash(f"{number:032x}") for number in range(first + 1, count + 1)]
        parents = [self.names[-1] if self.names else None, *fresh]
        self.names += fresh
        return [Stored(parent, (name,)) for parent, name in zip(parents, fresh, strict=False)]

    def load(self) -> WorkerLoad:
        return replace(NO_LOAD, pages_total=2 * BURST)

    def cost(self) -> CostModel:
        return NO_COST

    def blocks(self) -> tuple[BlockHash, ...]:
        return tuple(self.names)

    def digest(self) -> tuple[int, str]:
        total = sum(int(name, 16) for name in self.names)
        return len(self.names), f"{total % (1 << 128):032x}"


class Over(Exception):
    """The test has seen enough: end the processes' tasks."""


async def on_nats(
    server: NatsServer,
    role: str,
    tasks: asyncio.TaskGroup,
    settings: ProcessSettings,
    buses: list[NatsBus],
) -> Scope:
    scope = make_scope(role, MemoryBroker(), tasks, settings)
    traffic = Traffic(scope.metrics, scope.log)
    credentials = str(server.credentials(role))
    bus = await NatsBus.connect(server.url, role, credentials, traffic=traffic)
    buses.append(bus)
    return replace(scope, bus=bus, open_bucket=bus.key_value)


def noticed(scope: Scope) -> float:
    """Snapshots begun for a gap in the numbers, or for a number or a sum in a heartbeat where
    nothing came after what was lost."""
    causes = ("gap", "behind", "digest")
    resyncs = (scope.metrics.value("baton_index_resyncs_total", cause=c) for c in causes)
    return sum(resyncs)


async def test_a_scheduler_that_falls_behind_reads_anew(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes in four messages at a time: far fewer than one read from the server brings."""
    monkeypatch.setattr(receiver, "WAITING_MESSAGES", 4)
    config = SchedulerConfig(worker_id="scheduler-0", heartbeat_s=0.1, lease_s=1.0)
    settings = ProcessSettings(worker_id="decode-0", heartbeat_s=0.1, lease_s=1.0)
    blocks, buses = Blocks(), list[NatsBus]()
    try:
        async with asyncio.TaskGroup() as tasks:
            ours = await on_nats(nats_server, "scheduler", tasks, config, buses)
            theirs = await on_nats(nats_server, "decode", tasks, settings, buses)
            app = SchedulerApp(ours, config)
            tasks.create_task(app.run(ours), name="scheduler")
            membership = Membership(theirs, Traits("model", "layout"), blocks)
            await membership.join()
            await until(lambda: "decode-0" in str(app.accounting()["workers"]), 60.0)
            membership.publish_blocks(blocks.grow(BURST))
            await until(lambda: app.accounting()["index_blocks"] == BURST, 60.0)
            lost = ours.metrics.value("baton_bus_dropped_total", reason="slow_consumer")
            assert 0 < lost < BURST
            await until(lambda: noticed(ours) > 0, 60.0)
            raise Over
    except* Over:
        pass
    finally:
        for bus in buses:
            await bus.close()
