"""Shared doors: one real nats-server a session or a broker in memory, and the small real model.

Properties are tried on the same examples every time; `--hypothesis-profile=search` tries new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from services.fetch import CACHE, FILE
from shared.bus.memory_broker import MemoryBroker
from shared.bus.nats import NatsBus
from shared.bus.server import NatsServer
from shared.bus.traffic import Traffic
from tests.architecture.sources import ROOT

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("search", print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A real server with one user per role, on a free loopback port."""
    server = NatsServer(tmp_path_factory.mktemp("nats") / "run")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def model_path() -> str:
    """BATON_TEST_MODEL, or the copy that `make` caches; skips where neither is there."""
    path = Path(os.environ.get("BATON_TEST_MODEL", str(ROOT / CACHE / FILE)))
    if not path.is_file():
        pytest.skip("the small real model is not here (make fetch, or set BATON_TEST_MODEL)")
    return str(path)


@pytest.fixture
def memory_broker() -> MemoryBroker:
    return MemoryBroker()


async def connect(server: NatsServer, role: str, traffic: Traffic | None = None) -> NatsBus:
    """A connection with the role's credential. The caller closes it."""
    path = str(server.credentials(role))
    return await NatsBus.connect(server.url, role, path, traffic=traffic or Traffic())
