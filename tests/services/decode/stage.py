"""A whole decode worker on the in-memory bus and plane, with fakes for everybody around it."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Never

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.decode.app import DecodeApp
from services.decode.config import DecodeConfig
from services.decode.core.machine import DecodeMachine
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.checkpoint import open_checkpoint
from shared.clock import SystemClock
from shared.dataplane.memory import MemoryFabric
from shared.ids import Attempt, Epoch, Generation, PageId, RequestId, WorkerId
from shared.kv.hashing import CacheIdentity
from shared.runtime.probes import RunFile
from shared.runtime.service import Scope
from shared.telemetry.log import Log
from shared.telemetry.metrics import Metrics
from shared.telemetry.trace import Tracer
from shared.wire import subjects
from shared.wire.codec import Message
from shared.wire.requests import (
    Acknowledged,
    CancelRequest,
    DecodeJob,
    JobFailed,
    LeaseKey,
    LeasesRenewed,
    PagesReady,
    ReleaseLease,
    RenewLeases,
    ResendTokens,
    TokenChunk,
    WorkerRef,
)
from shared.wire.workers import Heartbeat, Registered, RegisterWorker, WorkerLost

from .prefill_side import BLOCK, PrefillSide
from .rig import GATEWAY, GatewayLog

ME = WorkerId("decode-0")
EPOCH = Epoch(7)
PREFILL = WorkerRef(WorkerId("prefill-0"), Epoch(3), "memory:prefill")
PAGES = 64
WAIT_S = 10.0


class Finished(Exception):
    """Ends the stage's tasks."""


class TicketGuard:
    """Opens what a live lease's ticket opens, at the right generation."""

    def __init__(self, side: PrefillSide) -> None:
        self._side = side

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        known = ticket in self._side.leases.values()
        right = all(self._side.generations[page] == generation for page, generation in pages)
        return 1 if known and right else None

    def close_read(self, read: int) -> None:
        return


class Stage:
    """Everything around the worker, and what it was told."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(random.Random(1))
        self.fabric = MemoryFabric()
        self.spans = InMemorySpanExporter()
        self.metrics = Metrics()
        checkpoint = open_checkpoint("hashchain")
        identity = CacheIdentity(
            "tenant", checkpoint.digest, checkpoint.tokenizer_digest, "float32", BLOCK
        )
        self.side = PrefillSide(me=PREFILL, identity=identity)
        self.beats: list[Heartbeat] = []
        self.events: list[Message] = []
        self.logs: dict[RequestId, GatewayLog] = defaultdict(GatewayLog)
        self.chunks: list[TokenChunk] = []
        self.failed: list[JobFailed] = []
        self.renewed: list[RenewLeases] = []
        self.answer_leases = True
        self.app: DecodeApp

    async def open(self, tasks: asyncio.TaskGroup, config: DecodeConfig) -> Scope:
        self.scheduler = MemoryBus(self.broker, "scheduler", "scheduler")
        self.gateway = MemoryBus(self.broker, "gateway-0", "gateway")
        self.prefill = MemoryBus(self.broker, "prefill-0", "prefill")
        self.plane = self.fabric.plane("prefill")
        self.plane.register(self.side.engine.memory, TicketGuard(self.side))
        await self.plane.start()
        await self.scheduler.subscribe(subjects.REGISTRATIONS, self._register)
        await self.scheduler.subscribe(subjects.HEARTBEATS, self._hear)
        await self.scheduler.subscribe(subjects.BLOCK_EVENTS, self._hear)
        await self.gateway.subscribe(subjects.tokens(GATEWAY), self._hear_tokens)
        await self.prefill.subscribe(subjects.leases(PREFILL.worker), self._lend)
        clock = SystemClock()
        return Scope(
            role="decode",
            settings=config,
            clock=clock,
            log=Log("decode", ME, level="error"),
            metrics=self.metrics,
            tracer=Tracer("decode", ME, clock, None, exporter=self.spans),
            bus=MemoryBus(self.broker, ME, "decode"),
            open_bucket=_no_bucket,
            tasks=tasks,
            stopping=asyncio.Event(),
            probe_port=0,
            run_file=RunFile("", ME),
        )

    # -- the fakes -------------------------------------------------------------------------

    async def _register(self, delivery: Delivery) -> Message:
        assert isinstance(delivery.message, RegisterWorker)
        return Registered(delivery.message.worker, EPOCH, Epoch(1))

    async def _hear(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, Heartbeat):
            self.beats.append(delivery.message)
        else:
            self.events.append(delivery.message)

    async def _hear_tokens(self, delivery: Delivery) -> None:
        message = delivery.message
        if isinstance(message, TokenChunk):
            self.chunks.append(message)
            for entry in message.entries:
                self.logs[entry.request].take(entry)
        else:
            assert isinstance(message, JobFailed)
            self.failed.append(message)

    async def _lend(self, delivery: Delivery) -> Message | None:
        message = delivery.message
        if not self.answer_leases:
            return None
        match message:
            case RenewLeases():
                self.renewed.append(message)
                gone = tuple(key for key in message.leases if key not in self.side.leases)
                return LeasesRenewed(gone)
            case ReleaseLease():
                assert (message.reader, message.epoch) == (ME, EPOCH)
                self.side.leases.pop(message.lease, None)
                self.side.released.append((message.lease, message.reason))
                return Acknowledged()
        raise AssertionError(message)

    # -- what a test does ------------------------------------------------------------------

    async def submit(self, wanted: DecodeJob, trace: str = "") -> Message:
        headers = Headers(traceparent=trace)
        return await self.gateway.request(subjects.job("decode", ME), wanted, headers, WAIT_S)

    async def announce(self, ready: PagesReady, trace: str = "") -> Message:
        headers = Headers(traceparent=trace)
        return await self.prefill.request(subjects.pages(ME), ready, headers, WAIT_S)

    async def handoff(self, wanted: DecodeJob, chunk_tokens: int = 8) -> None:
        """Everything that prefill does for one job."""
        ready = self.side.compute(wanted, chunk_tokens)
        self.first_token(wanted, ready[-1])
        for one in ready:
            assert isinstance(await self.announce(one), Acknowledged)

    def first_token(self, wanted: DecodeJob, last: PagesReady) -> None:
        assert last.first_token is not None
        log = self.logs[wanted.request]
        log.tokens[wanted.first_index] = last.first_token
        log.finish = last.first_finish

    async def cancel(self, name: str, attempt: int = 1) -> Message:
        wish = CancelRequest(RequestId(name), Attempt(attempt), "client_gone")
        return await self.gateway.request(subjects.job("decode", ME), wish, Headers(), WAIT_S)

    async def resend(self, name: str, index: int = 0) -> Message:
        wish = ResendTokens(RequestId(name), Attempt(1), index)
        return await self.gateway.request(subjects.job("decode", ME), wish, Headers(), WAIT_S)

    async def lose(self, lost: WorkerLost) -> None:
        await self.scheduler.publish(subjects.LOST, lost, Headers())

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a stated condition under a deadline."""
        async with asyncio.timeout(WAIT_S):
            while not reached():  # noqa: ASYNC110 - many tasks can make it true
                await asyncio.sleep(0.002)

    async def finish(self, wanted: DecodeJob) -> GatewayLog:
        await self.until(lambda: self.logs[wanted.request].finish is not None)
        return self.logs[wanted.request]

    async def at_rest(self) -> None:
        await self.until(lambda: not any(self.held()))

    def held(self) -> tuple[object, ...]:
        found = self.app.accounting()
        return tuple(value for name, value in found.items() if name != "pages")

    def released(self, name: str) -> list[str]:
        key = LeaseKey(RequestId(name), Attempt(1))
        return [reason for lease, reason in self.side.released if lease == key]

    @property
    def machine(self) -> DecodeMachine:
        found = self.app._machine
        assert found is not None
        return found


async def _no_bucket(name: str) -> Never:
    raise AssertionError(name)


def config(**changes: Any) -> DecodeConfig:
    settings: dict[str, Any] = {
        "worker_id": ME,
        "engine": "hashchain",
        "model_path": "hashchain",
        "block_tokens": BLOCK,
        "kv_pages": PAGES,
        "step_tokens": 16,
        "heartbeat_s": 0.05,
    }
    return DecodeConfig(**{**settings, **changes})


@asynccontextmanager
async def running(**changes: Any) -> AsyncIterator[Stage]:
    """A worker that has joined and is ready; drained at the end."""
    stage, settings = Stage(), config(**changes)
    try:
        async with asyncio.TaskGroup() as tasks:
            scope = await stage.open(tasks, settings)
            stage.app = DecodeApp(scope, settings, stage.fabric.plane("decode"))
            runner = tasks.create_task(stage.app.run(scope), name="decode")
            await stage.until(stage.app.ready)
            yield stage
            if not runner.done():
                await stage.app.drain()
                async with asyncio.timeout(WAIT_S):
                    await runner
            raise Finished
    except* Finished:
        pass
