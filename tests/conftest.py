"""Shared doors to the bus: one real nats-server a session, or a broker in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.bus.memory_broker import MemoryBroker
from shared.bus.nats import NatsBus
from shared.bus.server import NatsServer
from shared.bus.traffic import Traffic


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A real server with one user per role, on a free loopback port."""
    server = NatsServer(tmp_path_factory.mktemp("nats") / "run")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def memory_broker() -> MemoryBroker:
    return MemoryBroker()


async def connect(server: NatsServer, role: str, traffic: Traffic | None = None) -> NatsBus:
    """A connection with the role's credential. The caller closes it."""
    path = str(server.credentials(role))
    return await NatsBus.connect(server.url, role, path, traffic=traffic or Traffic())
