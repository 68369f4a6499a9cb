"""What the bus contract needs of an adapter's world: clients per role, raw bytes, an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shared.bus.bus import Bus, Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.bus.nats import NatsBus
from shared.bus.server import NatsServer
from shared.bus.traffic import Traffic
from shared.ids import Attempt, RequestId, WorkerId
from shared.telemetry.metrics import Metrics
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import CancelRequest, Ended
from tests.conftest import connect

JOB = subjects.job("decode", WorkerId("d0"))
JOBS = "baton.decode.*.job"
CANCEL = CancelRequest(RequestId("r1"), Attempt(1), "test")
ENDED = Ended(RequestId("r1"), Attempt(1))
PLAIN = Headers()


@dataclass(frozen=True, slots=True)
class Joined:
    """A client and what it counted."""

    bus: MemoryBus | NatsBus
    metrics: Metrics


class Wire(Protocol):
    async def join(self, role: str) -> Joined: ...

    async def say_raw(self, subject: str, data: bytes) -> None:
        """Bytes on a subject, past our encoder, from the gateway's credential."""
        ...

    async def outage(self) -> None: ...

    async def restore(self) -> None: ...

    async def close(self) -> None: ...


class MemoryWire:
    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self._count = 0

    async def join(self, role: str) -> Joined:
        self._count += 1
        metrics = Metrics()
        return Joined(
            MemoryBus(self.broker, f"{role}-{self._count}", role, Traffic(metrics)), metrics
        )

    async def say_raw(self, subject: str, data: bytes) -> None:
        self.broker.deliver_raw(subject, data)

    async def outage(self) -> None:
        self.broker.outage()

    async def restore(self) -> None:
        self.broker.restore()

    async def close(self) -> None:
        for client in list(self.broker.clients):
            assert isinstance(client, MemoryBus)
            await client.close()


class NatsWire:
    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self._joined: list[NatsBus] = []

    async def join(self, role: str) -> Joined:
        metrics = Metrics()
        bus = await connect(self.server, role, Traffic(metrics))
        self._joined.append(bus)
        return Joined(bus, metrics)

    async def say_raw(self, subject: str, data: bytes) -> None:
        bus = await connect(self.server, "gateway")
        await bus.client.publish(subject, data)
        await bus.close()

    async def outage(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def restore(self) -> None:
        await asyncio.to_thread(self.server.start)

    async def close(self) -> None:
        for bus in self._joined:
            await bus.close()


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    """Let the loop run until `holds()`; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what it waits for has no event of its own
            await asyncio.sleep(0.002)


async def until_connected(bus: Bus, connected: bool) -> None:
    await until(lambda: bus.connected is connected)


class Recorder:
    """A handler that keeps what it got and answers what it is told."""

    def __init__(self, answer: Message | None = None) -> None:
        self.got: list[Delivery] = []
        self.answer = answer

    async def __call__(self, delivery: Delivery) -> Message | None:
        self.got.append(delivery)
        return self.answer

    async def wait(self, count: int) -> None:
        await until(lambda: len(self.got) >= count)
