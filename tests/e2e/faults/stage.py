"""A real cluster with hands on everything around it: proxies, the wire, streams, and the last
check that every fault test ends with.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from services.local import LocalCluster, LocalSettings
from services.topology import Value
from tests.e2e.chaos_proxy import ChaosProxy
from tests.e2e.cluster import HELD, TestCluster, Wish
from tests.e2e.faults.load import Stream, prompt
from tests.e2e.faults.wire import Heard, Wire

LEASE_S: Final = 3.0
GRACE_S: Final = 5.0
SETTLE_S: Final = LEASE_S + GRACE_S + 7.0
"""Lease + grace, and what a loaded machine needs to do it."""
COLLECTOR: Final = "collector"
_PATIENCE_S: Final = 40.0
_POLL_S: Final = 0.02
_PROBE: Final = prompt(77, 150)

QUICK: Final[dict[str, Value]] = {"lease_s": LEASE_S, "drain_s": 8.0}
PAIRS: Final = Wish(
    prefill=2,
    decode=2,
    shared=QUICK,
    settings={
        "scheduler": {"route": "disaggregated"},
        "prefill": {"chunk_tokens": 32, "kv_pages": 4096},
        "decode": {"kv_pages": 4096},
    },
)
"""Two of each worker, short leases, prompts in many chunks so that there is time to hit one, and
room for everybody on the worker that is left."""


def wish(changed: Wish = PAIRS, /, **settings: Mapping[str, Value]) -> Wish:
    """The usual cluster with some services set otherwise."""
    merged = {
        role: {**changed.settings.get(role, {}), **entries} for role, entries in settings.items()
    }
    return replace(changed, settings={**changed.settings, **merged})


@dataclass(eq=False)
class Stage:
    """What the events of a row act on."""

    cluster: TestCluster
    proxies: Mapping[str, ChaosProxy]
    wire: Wire
    http: aiohttp.ClientSession
    streams: list[Stream] = field(default_factory=list)
    probes: list[Stream] = field(default_factory=list)
    """Small requests that events send to see what happens just then; judged by the event."""
    heard: dict[str, Heard] = field(default_factory=dict)
    """What was recorded, by subject."""
    after: list[tuple[asyncio.Event, Any]] = field(default_factory=list)
    """Events that wait for a message."""
    tracing: list[asyncio.Task[None]] = field(default_factory=list)
    """One for each thread that was made to stand still."""
    leader: str = ""
    sockets: list[socket.socket] = field(default_factory=list)
    settled_s: float = 0.0
    leaked: dict[str, dict[str, object]] = field(default_factory=dict)

    def start(self, stream: Stream, *, judged: bool = True) -> Stream:
        (self.streams if judged else self.probes).append(stream)
        stream.task = asyncio.create_task(stream.run(self.http, self.cluster.url), name="stream")
        return stream

    async def held(self, name: str, entry: str) -> int:
        """A number of a running process's accounting; 0 while it does not answer."""
        return int(str(await self.accounted(name, entry) or 0))

    async def accounted(self, name: str, entry: str) -> object:
        """An entry of its accounting; None while it does not answer."""
        try:
            found = await self.cluster.local.members[name].accounting(self.http)
        except (aiohttp.ClientError, TimeoutError):
            return None
        return found.get(entry)

    async def counted(self, name: str, metric: str) -> float:
        """The sum of all series whose line begins so."""
        lines = (await self.cluster.metrics(name)).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(metric))

    def socket(self) -> socket.socket:
        """A fresh one, closed with the stage."""
        self.sockets.append(socket.socket())
        self.sockets[-1].setblocking(False)
        return self.sockets[-1]

    def close_sockets(self) -> None:
        while self.sockets:
            self.sockets.pop().close()

    @staticmethod
    async def end_of(stream: Stream) -> None:
        if stream.task is not None:
            await stream.task

    async def all_ended(self) -> None:
        for stream in (*self.streams, *self.probes):
            if stream.task is not None and not stream.left:
                await stream.task

    async def last_check(self, probe_code: str = "") -> None:
        """Everybody runs and is ready, nobody holds anything, a probe gets its known tokens (or
        that error)."""
        members = self.cluster.local.members.values()
        gone = [member.name for member in members if not member.child.running]
        assert not gone, f"the row did not start again: {gone}"
        await self.cluster.until_ready()
        began_s = time.monotonic()
        while leaks := await self.leaks():
            if time.monotonic() - began_s > SETTLE_S:
                self.leaked = leaks
                break
            await asyncio.sleep(_POLL_S)
        self.settled_s = time.monotonic() - began_s
        assert not self.leaked, f"still held after {SETTLE_S:g} s: {self.leaked}"
        probe = self.start(Stream(_PROBE, 20), judged=False)
        await self.all_ended()
        good = probe.code == probe_code if probe_code else probe.complete
        assert good and not probe.wrong_tokens, f"probe: {probe.describe()}"

    async def leaks(self) -> dict[str, dict[str, object]]:
        found = {}
        for name, entries in (await self.cluster.accounting()).items():
            rest = {key: entries[key] for key in HELD if entries.get(key)}
            if rest or not entries:
                found[name] = rest or {"accounting": "empty"}
        return found


async def until(
    what: str, true: Callable[[], Awaitable[bool]], limit_s: float = _PATIENCE_S
) -> None:
    """Wait for a condition that another process makes true. AssertionError names it."""
    give_up_s = time.monotonic() + limit_s
    while not await true():
        assert time.monotonic() < give_up_s, f"never came: {what}"
        await asyncio.sleep(_POLL_S)


def _through(wanted: Wish, role: str, port: int) -> Wish:
    """That role's bus, or everybody's trace collector, is behind the port."""
    if role != COLLECTOR:
        return wish(wanted, **{role: {"nats_url": f"nats://127.0.0.1:{port}"}})
    shared = {**wanted.shared, "otlp_endpoint": f"http://127.0.0.1:{port}/v1/traces"}
    return replace(wanted, shared=shared)


@asynccontextmanager
async def running_stage(
    folder: Path, wanted: Wish, proxied: tuple[str, ...]
) -> AsyncIterator[Stage]:
    """Started and ready; drained at the end when the row went well, killed when not. The
    processes of a `proxied` role reach NATS through that role's proxy."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("BATON_")}
    said: list[str] = []
    async with AsyncExitStack() as stack:
        proxies = {role: ChaosProxy(lambda: local.nats.port) for role in proxied}
        for role, proxy in proxies.items():
            await stack.enter_async_context(proxy.listening())
            wanted = _through(wanted, role, proxy.port)
        settings = LocalSettings(
            topology=wanted.topology(),
            model_path=wanted.model,
            run_dir=folder / "run",
            restart=False,
            drain_s=15.0,
            environment=environment,
        )
        local = LocalCluster(settings, said.append)
        await local.start()
        try:
            # Nothing is kept alive, so that a gateway may come and go.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with (
                Wire(local.nats).opened() as wire,
                aiohttp.ClientSession(connector=connector) as http,
            ):
                stage = Stage(TestCluster(local), proxies, wire, http)
                try:
                    yield stage
                finally:
                    stage.close_sockets()
        except BaseException:
            await local.kill()
            raise
        await local.drain()
    assert not [line for line in said if "killed" in line], said
