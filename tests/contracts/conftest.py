"""The worlds of the bus contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.server import NatsServer
from tests.contracts.wires import MemoryWire, NatsWire, Wire


@pytest.fixture(params=["memory", "nats"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    if request.param == "memory":
        made: Wire = MemoryWire()
    else:
        made = NatsWire(request.getfixturevalue("nats_server"))
    yield made
    await made.close()


@pytest.fixture(params=["memory", "nats"])
async def breakable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Wire]:
    """A wire whose server may be killed."""
    if request.param == "memory":
        yield MemoryWire()
        return
    server = NatsServer(tmp_path / "run")
    server.start()
    made = NatsWire(server)
    yield made
    await made.close()
    server.stop()
