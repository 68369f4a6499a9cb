"""A whole pool node on the in-memory bus and plane, with workers that own and read real bytes."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.kvpool.app import KvPoolApp
from services.kvpool.arena import HostArena
from services.kvpool.config import KvPoolConfig
from services.kvpool.shell import Shell
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.checkpoint import open_checkpoint
from shared.checkpoint.geometry import page_layout
from shared.dataplane.memory import MemoryFabric
from shared.dataplane.plane import PageRead
from shared.errors import TransferError
from shared.ids import Attempt, BlockHash, Epoch, Generation, PageId, RequestId, WorkerId
from shared.kv.cache import PageCache
from shared.kv.hashing import CacheIdentity, block_hashes
from shared.kv.leases import LeaseName
from shared.runtime.service import Scope
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
from shared.wire.requests import Acknowledged, PageRef, WorkerRef
from shared.wire.workers import Heartbeat, Registered, RegisterWorker
from tests.builders import running, scope_on, start, until

BLOCK_TOKENS = 16
LAYOUT = page_layout(open_checkpoint("hashchain"), "float32", BLOCK_TOKENS)
POOL = WorkerId("kvpool-0")
EPOCH = Epoch(4)
WAIT_S = 10.0
IDENTITY = CacheIdentity("tenant", "model", "tokenizer", "float32", BLOCK_TOKENS)
PARENT = "00-11111111111111111111111111111111-2222222222222222-01"


def chain(*path: int) -> tuple[BlockHash, ...]:
    """Names of a prompt whose blocks are told apart by one number each."""
    return block_hashes(IDENTITY, [number for number in path for _ in range(BLOCK_TOKENS)])


class Worker:
    """A prefill worker reduced to pages: seals random bytes, offers them, looks up and reads."""

    def __init__(self, stage: Stage, name: str, pages: int = 64) -> None:
        self.bus = MemoryBus(stage.broker, name, "prefill")
        self.arena = HostArena(pages * LAYOUT.page_bytes, LAYOUT.page_bytes)
        self.cache = PageCache(pages, BLOCK_TOKENS)
        self.plane = stage.fabric.plane(name)
        self.plane.register(self.arena, self)
        self.ref = WorkerRef(WorkerId(name), Epoch(1), self.plane.address)
        self._offers = 0

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        return self.cache.open_read(ticket, pages, 0.0)

    def close_read(self, read: int) -> None:
        self.cache.close_read(read)

    def seal(
        self, blocks: Sequence[BlockHash], proofs: dict[BlockHash, int] | None = None
    ) -> OfferBlocks:
        """New pages for a chain, leased under the ticket of an offer. Their bytes are random, but
        the same for one name wherever it is computed; `proofs` learns their checksums."""
        granted = self.cache.grant(len(blocks)) or ()
        refs = []
        for position, (page, block) in enumerate(zip(granted, blocks, strict=True)):
            view = self.arena.run(page.page, 1)
            view[:] = np.random.default_rng(int(block, 16)).integers(0, 256, view.size, np.uint8)
            (checksum,) = self.arena.checksums([page.page])
            self.cache.seal(page.page, checksum)
            refs.append(
                PageRef(position, page.page, page.generation, BLOCK_TOKENS, checksum, block)
            )
            if proofs is not None:
                proofs[block] = checksum
        self._offers += 1
        ticket = f"{self.ref.worker}-{self._offers}"
        ids = [page.page for page in granted]
        self.cache.lease(_offer_name(ticket), ticket, ids, 0.0, 1e9)
        self.cache.release(ids)
        return OfferBlocks(self.ref, ticket, "tenant", LAYOUT.digest, tuple(refs))

    def forget(self, message: OfferBlocks) -> None:
        """The offer was answered: its pages may go."""
        self.cache.end_lease(_offer_name(message.ticket))

    async def ask(self, message: Message, timeout_s: float = WAIT_S) -> Message:
        headers = Headers(traceparent=PARENT)
        return await self.bus.request(subjects.pool(POOL), message, headers, timeout_s)

    async def offer(self, message: OfferBlocks, timeout_s: float = WAIT_S) -> int:
        reply = await self.ask(message, timeout_s)
        assert isinstance(reply, BlocksKept)
        return reply.kept

    async def look_up(self, blocks: Sequence[BlockHash]) -> BlocksFound:
        reply = await self.ask(LookupBlocks(self.ref, LAYOUT.digest, tuple(blocks), 0))
        assert isinstance(reply, BlocksFound)
        return reply

    async def read(self, found: BlocksFound, timeout_s: float = WAIT_S) -> list[int]:
        """Pull what was found; what each page hashes to here."""
        targets = self.cache.grant(len(found.pages)) or ()
        pairs = zip(found.pages, targets, strict=True)
        reads = [PageRead(ref.page, ref.generation, own.page) for ref, own in pairs]
        ids = [own.page for own in targets]
        try:
            await self.plane.read(found.owner.plane_address, found.ticket, reads, timeout_s)
        except TransferError as error:
            (self.cache.release if error.settled else self.cache.quarantine)(ids)
            raise
        sums = self.arena.checksums(ids)
        self.cache.release(ids)
        return list(sums)

    async def release(self, found: BlocksFound, corrupted: Sequence[BlockHash] = ()) -> None:
        reply = await self.ask(ReleaseBlocks(self.ref.worker, found.ticket, tuple(corrupted)))
        assert isinstance(reply, Acknowledged)


class Stage:
    """Everything around the node, and what it was told."""

    def __init__(self, fabric: MemoryFabric | None = None) -> None:
        self.broker = MemoryBroker(random.Random(1))
        self.fabric = fabric or MemoryFabric()
        self.spans = InMemorySpanExporter()
        self.beats: list[Heartbeat] = []
        self.events: list[Message] = []
        self.scheduler = MemoryBus(self.broker, "scheduler", "scheduler")
        self.app: KvPoolApp
        self.scope: Scope

    @property
    def shell(self) -> Shell:
        assert self.app.shell is not None
        return self.app.shell

    async def worker(self, name: str) -> Worker:
        worker = Worker(self, name)
        await worker.plane.start()
        return worker

    async def open(self, tasks: asyncio.TaskGroup, config: KvPoolConfig, run_dir: Path) -> None:
        await self.scheduler.subscribe(subjects.REGISTRATIONS, _register)
        await self.scheduler.subscribe(subjects.HEARTBEATS, self._hear)
        await self.scheduler.subscribe(subjects.BLOCK_EVENTS, self._hear)
        scope = scope_on(self.broker, tasks, "kvpool", config, run_dir)
        tracer = Tracer("kvpool", POOL, scope.clock, None, exporter=self.spans)
        self.scope = dataclasses.replace(scope, tracer=tracer)
        self.app = KvPoolApp(self.scope, config, self.fabric.plane("kvpool"))

    async def _hear(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, Heartbeat):
            self.beats.append(delivery.message)
        else:
            self.events.append(delivery.message)

    def at_rest(self) -> bool:
        """Nothing is held; raises InvariantError when the node contradicts itself."""
        self.shell.machine.check()
        found = self.app.accounting()
        held = ("held_pages", "leases", "requests", "open_reads", "offers")
        return all(found[name] == 0 for name in held)

    async def rest(self) -> None:
        await until(self.at_rest)


def _offer_name(ticket: str) -> LeaseName:
    return LeaseName(RequestId(ticket), Attempt(1))


async def _register(delivery: Delivery) -> Message:
    assert isinstance(delivery.message, RegisterWorker)
    return Registered(delivery.message.worker, EPOCH, Epoch(1))


def settings(pages: int = 32, **fields: Any) -> KvPoolConfig:
    chosen: dict[str, Any] = {
        "worker_id": POOL,
        "model_path": "hashchain",
        "host_bytes": pages * LAYOUT.page_bytes,
        "heartbeat_s": 0.05,
    }
    return KvPoolConfig(**{**chosen, **fields})


@asynccontextmanager
async def stage_with(
    run_dir: Path, pages: int = 32, fabric: MemoryFabric | None = None, **fields: object
) -> AsyncIterator[Stage]:
    """A joined node, ready to serve."""
    stage = Stage(fabric)
    async with running() as tasks:
        await stage.open(tasks, settings(pages, **fields), run_dir)
        await start(stage.app, stage.scope)
        yield stage
