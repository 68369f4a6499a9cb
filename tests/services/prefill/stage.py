"""A whole prefill worker on the in-memory bus and plane, with fakes for everybody around it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Never

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.prefill.app import PrefillApp
from services.prefill.config import PrefillConfig
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.clock import SystemClock
from shared.dataplane.memory import MemoryFabric, MemoryPlane
from shared.dataplane.plane import PageRead
from shared.engine.host_pages import HostPages
from shared.ids import Attempt, BlockHash, Epoch, Generation, PageId, RequestId, WorkerId
from shared.runtime.probes import RunFile
from shared.runtime.service import Scope
from shared.telemetry.log import Log
from shared.telemetry.metrics import Metrics
from shared.telemetry.trace import Tracer
from shared.wire import subjects
from shared.wire.blocks import (
    BlocksFound,
    BlocksKept,
    LookupBlocks,
    OfferBlocks,
    ReleaseBlocks,
)
from shared.wire.codec import Message
from shared.wire.requests import (
    Acknowledged,
    CancelRequest,
    LeaseKey,
    PageRef,
    PagesReady,
    PrefillFailed,
    Refused,
    ReleaseLease,
    TokenChunk,
    TokenEntry,
    WorkerRef,
)
from shared.wire.workers import Heartbeat, Registered, RegisterWorker, WorkerLost
from tests.services.prefill.rig import DECODE, GATEWAY, POOL, engine, job

ME = WorkerId("prefill-0")
EPOCH = Epoch(3)
PAGES = 64
WAIT_S = 10.0


class Finished(Exception):
    """Ends the stage's tasks."""


class Allow:
    """A read guard that knows one rule: everything may be read."""

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        return 1

    def close_read(self, read: int) -> None:
        return


class Peer:
    """A worker with page memory and a plane, as decode and the pool have."""

    def __init__(self, stage: Stage, role: str, ref: WorkerRef, page_bytes: int) -> None:
        self.bus = MemoryBus(stage.broker, ref.worker, role)
        self.plane = stage.fabric.plane(ref.plane_address.removeprefix("memory:"))
        self.memory = HostPages(PAGES, page_bytes)
        self.plane.register(self.memory, Allow())

    async def fetch(self, owner: WorkerRef, ticket: str, refs: Sequence[PageRef]) -> list[PageRef]:
        """Pull pages to the same places; those whose checksum is right."""
        reads = [PageRead(ref.page, ref.generation, ref.page) for ref in refs]
        await self.plane.read(owner.plane_address, ticket, reads, WAIT_S)
        sums = self.memory.checksums([ref.page for ref in refs])
        return [ref for ref, found in zip(refs, sums, strict=True) if found == ref.checksum]


class Stage:
    """Everything around the worker, and what it was told."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(random.Random(1))
        self.fabric = MemoryFabric()
        self.spans = InMemorySpanExporter()
        self.metrics = Metrics()
        self.beats: list[Heartbeat] = []
        self.events: list[Message] = []
        self.tokens: list[TokenEntry] = []
        self.failed: list[Message] = []
        self.ready: list[PagesReady] = []
        self.notices: list[PrefillFailed] = []
        self.fetched: dict[int, PageRef] = {}
        self.taken: Counter[str] = Counter()
        """Pages that decode has read, by request."""
        self.refuse_pages: str = ""
        self.kept: dict[BlockHash, PageRef] = {}
        self.returned: list[ReleaseBlocks] = []
        self.traceparents: set[str] = set()
        self.app: PrefillApp

    # -- set-up --------------------------------------------------------------------------------

    async def open(self, tasks: asyncio.TaskGroup, config: PrefillConfig) -> Scope:
        page_bytes = engine(1).memory.page_bytes
        self.scheduler = MemoryBus(self.broker, "scheduler", "scheduler")
        self.gateway = MemoryBus(self.broker, "gateway-0", "gateway")
        self.decode = Peer(self, "decode", DECODE_REF, page_bytes)
        self.pool = Peer(self, "kvpool", POOL_REF, page_bytes)
        await self.decode.plane.start()
        await self.pool.plane.start()
        await self.scheduler.subscribe(subjects.REGISTRATIONS, self._register)
        await self.scheduler.subscribe(subjects.HEARTBEATS, self._hear)
        await self.scheduler.subscribe(subjects.BLOCK_EVENTS, self._hear)
        await self.gateway.subscribe(subjects.tokens(GATEWAY), self._hear_tokens)
        await self.decode.bus.subscribe(subjects.pages(DECODE.worker), self._take_pages)
        await self.pool.bus.subscribe(subjects.pool(POOL.worker), self._serve_pool)
        clock = SystemClock()
        return Scope(
            role="prefill",
            settings=config,
            clock=clock,
            log=Log("prefill", ME, level="error"),
            metrics=self.metrics,
            tracer=Tracer("prefill", ME, clock, None, exporter=self.spans),
            bus=MemoryBus(self.broker, ME, "prefill"),
            open_bucket=_no_bucket,
            tasks=tasks,
            stopping=asyncio.Event(),
            probe_port=0,
            run_file=RunFile("", ME),
        )

    def plane(self) -> MemoryPlane:
        return self.fabric.plane("prefill")

    # -- the fakes -----------------------------------------------------------------------------

    async def _register(self, delivery: Delivery) -> Message:
        assert isinstance(delivery.message, RegisterWorker)
        return Registered(delivery.message.worker, EPOCH, Epoch(1))

    async def _hear(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, Heartbeat):
            self.beats.append(delivery.message)
        else:
            self.events.append(delivery.message)

    async def _hear_tokens(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, TokenChunk):
            self.tokens.extend(delivery.message.entries)
        else:
            self.failed.append(delivery.message)

    async def _take_pages(self, delivery: Delivery) -> Message:
        message = delivery.message
        self.traceparents.add(delivery.headers.traceparent)
        if isinstance(message, PrefillFailed):
            self.notices.append(message)
            return Acknowledged()
        assert isinstance(message, PagesReady)
        if self.refuse_pages:
            return Refused(self.refuse_pages, "not here")
        self.ready.append(message)
        for ref in await self.decode.fetch(message.owner, message.ticket, message.pages):
            self.fetched[ref.position] = ref
            self.taken[message.request] += 1
        return Acknowledged()

    async def _serve_pool(self, delivery: Delivery) -> Message:
        message = delivery.message
        match message:
            case OfferBlocks():
                good = await self.pool.fetch(message.owner, message.ticket, message.pages)
                self.kept |= {ref.block: ref for ref in good if ref.block is not None}
                return BlocksKept(message.ticket, len(good))
            case LookupBlocks():
                found = [self.kept[b] for b in message.blocks if b in self.kept]
                moved = [
                    dataclasses.replace(ref, position=message.first_position + at)
                    for at, ref in enumerate(found)
                ]
                return BlocksFound(POOL_REF, "pool-ticket", 30.0, tuple(moved))
            case ReleaseBlocks():
                self.returned.append(message)
                return Acknowledged()
        raise AssertionError(message)

    # -- what a test does ----------------------------------------------------------------------

    async def start(
        self, name: str, tokens: Sequence[int], trace: str = "", **rest: Any
    ) -> Message:
        order = dataclasses.replace(job(name, tokens, **rest), decode=DECODE_REF)
        return await self.gateway.request(
            subjects.job("prefill", ME), order, Headers(traceparent=trace), WAIT_S
        )

    async def cancel(self, name: str, attempt: int = 1) -> Message:
        wish = CancelRequest(RequestId(name), Attempt(attempt), "client_gone")
        return await self.gateway.request(subjects.job("prefill", ME), wish, Headers(), WAIT_S)

    async def release(self, name: str, attempt: int = 1) -> Message:
        key = LeaseKey(RequestId(name), Attempt(attempt))
        wish = ReleaseLease(DECODE.worker, DECODE.epoch, key, "committed")
        return await self.decode.bus.request(subjects.leases(ME), wish, Headers(), WAIT_S)

    async def lose(self, lost: WorkerLost) -> None:
        await self.scheduler.publish(subjects.LOST, lost, Headers())

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a stated condition under a deadline."""
        async with asyncio.timeout(WAIT_S):
            while not reached():  # noqa: ASYNC110 - the worker tells nobody
                await asyncio.sleep(0.002)

    @property
    def held(self) -> object:
        return self.app.accounting().get("held_pages")

    def token(self, name: str) -> TokenEntry | None:
        return next((entry for entry in self.tokens if entry.request == name), None)


DECODE_REF = WorkerRef(DECODE.worker, DECODE.epoch, "memory:decode")
POOL_REF = WorkerRef(POOL.worker, POOL.epoch, "memory:pool")


async def _no_bucket(name: str) -> Never:
    raise AssertionError(name)


def config(**changes: Any) -> PrefillConfig:
    settings: dict[str, Any] = {
        "worker_id": ME,
        "engine": "hashchain",
        "model_path": "hashchain",
        "block_tokens": 4,
        "kv_pages": PAGES,
        "chunk_tokens": 16,
        "heartbeat_s": 0.05,
    }
    return PrefillConfig(**{**settings, **changes})


@asynccontextmanager
async def running(**changes: Any) -> AsyncIterator[Stage]:
    """A worker that has joined and is ready."""
    stage, settings = Stage(), config(**changes)
    try:
        async with asyncio.TaskGroup() as tasks:
            scope = await stage.open(tasks, settings)
            stage.app = PrefillApp(scope, settings, stage.plane())
            runner = tasks.create_task(stage.app.run(scope), name="prefill")
            await stage.until(stage.app.ready)
            yield stage
            if not runner.done():
                await stage.app.drain()
                async with asyncio.timeout(WAIT_S):
                    await runner
            raise Finished
    except* Finished:
        pass
