"""A real local cluster for tests: free ports, a private run folder, and hands on every process.

async with running_cluster(tmp_path) as cluster:
    answer = await cluster.chat("Hello")
    await cluster.kill("decode-0")
    await cluster.restart("decode-0")
    await cluster.until_nothing_is_held()
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from services.local import LocalCluster, LocalSettings
from services.topology import DEFAULT, Topology, Value
from tests.e2e.streams import Answer, read_stream

HELD: Final = (
    "held_pages",
    "leases",
    "requests",
    "sessions",
    "waiting_tokens",
    "open_cancels",
    "open_reads",
    "offers",
    "quarantined",
    "charges",
)
"""Entries of `/accounting` that are zero when nothing runs."""
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What cluster a test wants."""

    model: str = "hashchain"
    scheduler: int = 1
    prefill: int = 1
    decode: int = 1
    kvpool: int = 1
    shared: Mapping[str, Value] = field(default_factory=dict)
    """Settings of every service, e.g. {"lease_s": 3.0}."""
    settings: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Settings of one service, e.g. {"decode": {"kv_pages": 64}}."""

    def topology(self) -> Topology:
        wanted = Topology(groups=DEFAULT.groups, shared=tuple(self.shared.items()))
        for role in ("scheduler", "prefill", "decode", "kvpool"):
            wanted = wanted.with_count(role, getattr(self, role))
        if self.model == "hashchain":
            wanted = wanted.with_engine("hashchain")
        free = {"port": 0, "admin_port": 0, "traces_port": 0}
        wanted = wanted.changed(wanted.group("gateway").changed(**free))
        for role, entries in self.settings.items():
            wanted = wanted.changed(wanted.group(role).changed(**entries))
        return wanted


class TestCluster:
    """The running cluster. Names are worker ids: 'prefill-0', 'scheduler-0', …"""

    __test__ = False

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.killed: set[str] = set()
        """By us, at any time: what they had not told by then is lost."""

    @property
    def url(self) -> str:
        return self.local.url

    @property
    def admin_url(self) -> str:
        return self.local.admin_url

    @property
    def http(self) -> aiohttp.ClientSession:
        return self.local.http

    # -- faults --------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """SIGKILL; returns when the process is gone."""
        self.killed.add(name)
        await self.local.members[name].child.kill()

    async def restart(self, name: str) -> None:
        """Start a process that has ended; returns when it is ready."""
        if self.local.members[name].child.exit_code:
            self.killed.add(name)  # or by itself: its last spans are lost too
        await self.local.restart(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: silent, but not dead."""
        self.local.members[name].child.signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.local.members[name].child.signal(signal.SIGCONT)

    async def stop_nats(self, *, gently: bool = False) -> None:
        nats = self.local.nats
        await asyncio.to_thread(nats.stop if gently else nats.kill)

    async def start_nats(self) -> None:
        """On the same port, with the same store and credentials."""
        await asyncio.to_thread(self.local.nats.start)

    # -- looking -------------------------------------------------------------------------------

    async def accounting(self) -> dict[str, dict[str, object]]:
        return await self.local.accounting()

    async def metrics(self, name: str) -> str:
        return await self.local.members[name].metrics(self.http)

    def log(self, name: str) -> str:
        """Everything the process has written so far."""
        return self.local.members[name].child.log.read_text("utf-8", "replace")

    async def until_nothing_is_held(self, timeout_s: float = 20.0) -> None:
        """Every running process accounts for zero. AssertionError shows who holds what."""
        give_up_s = time.monotonic() + timeout_s
        while held := await self._held():
            assert time.monotonic() < give_up_s, f"still held after {timeout_s:g} s: {held}"
            await asyncio.sleep(_POLL_S)

    async def until_ready(self, timeout_s: float = 30.0) -> None:
        """Every running process says so (after an outage)."""
        for member in self.local.members.values():
            if member.child.running:
                await member.until_ready(self.http, timeout_s)

    async def trace(self, trace_id: str, *, services: int = 1, timeout_s: float = 15.0) -> Any:
        """The spans of a trace once they name that many services."""
        give_up_s, spans = time.monotonic() + timeout_s, list[Any]()
        while len({span["service"] for span in spans}) < services:
            assert time.monotonic() < give_up_s, f"only {len(spans)} spans of {trace_id}"
            async with self.http.get(f"{self.admin_url}/admin/traces/{trace_id}") as answer:
                if answer.status == 200:
                    spans = json.loads(await answer.read())["spans"]
            await asyncio.sleep(_POLL_S)
        return spans

    # -- asking --------------------------------------------------------------------------------

    async def model(self) -> str:
        """The name of the served model."""
        async with self.http.get(f"{self.url}/v1/models") as answer:
            return str(json.loads(await answer.read())["data"][0]["id"])

    async def chat(self, text: str, **parameters: Any) -> Answer:
        """One streamed chat, greedy unless said otherwise."""
        return await self.stream(
            "/v1/chat/completions", messages=[{"role": "user", "content": text}], **parameters
        )

    async def complete(self, prompt: str | list[int], **parameters: Any) -> Answer:
        """One streamed completion, greedy unless said otherwise."""
        return await self.stream("/v1/completions", prompt=prompt, **parameters)

    async def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, **body: Any
    ) -> Answer:
        """POST with `stream: true`; everything the client saw, also when it broke."""
        asked = {"temperature": 0, "max_tokens": 32} | body
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        asked.setdefault("model", await self.model())
        async with self.http.post(f"{self.url}{path}", json=asked, headers=headers) as answer:
            return await read_stream(answer)

    async def _held(self) -> dict[str, dict[str, object]]:
        found = {}
        for name, entries in (await self.accounting()).items():
            rest = {key: entries[key] for key in HELD if entries.get(key)}
            if rest or not entries:
                found[name] = rest or {"accounting": "empty"}
        return found


@asynccontextmanager
async def running_cluster(folder: Path, wish: Wish | None = None) -> AsyncIterator[TestCluster]:
    """Started and ready; drained at the end, so that every test also shows a clean stop. Nothing
    is restarted behind the test's back."""
    wish, said = wish or Wish(), list[str]()
    environment = {key: text for key, text in os.environ.items() if not key.startswith("BATON_")}
    settings = LocalSettings(
        topology=wish.topology(),
        model_path=wish.model,
        run_dir=folder / "run",
        restart=False,
        drain_s=45.0,
        environment=environment,
    )
    local = LocalCluster(settings, said.append)
    await local.start()
    try:
        yield TestCluster(local)
    except BaseException:
        await local.kill()
        raise
    await local.drain()
    assert not [line for line in said if "killed" in line], said
