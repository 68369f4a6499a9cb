"""A hundred thousand blocks: an empty scheduler learns them in seconds, and places meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.scheduler.app import SchedulerApp
from services.scheduler.config import SchedulerConfig
from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.ids import BlockHash, Epoch, WorkerId
from shared.kv.radix import Stored
from shared.runtime.journal import BlockJournal
from shared.wire import subjects
from shared.wire.blocks import BlockSnapshot, SnapshotRequest
from shared.wire.requests import Placement
from tests.builders import running, scope_on, start, until
from tests.services.scheduler.builders import ask, beat, names

BLOCKS = 100_000
W = WorkerId("prefill-0")
CONFIG = SchedulerConfig(
    worker_id="scheduler-0", heartbeat_s=0.2, lost_after_s=60.0, otlp_endpoint=None
)


class Holder:
    """A worker with many blocks and a journal of them."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.bus = MemoryBus(broker, W, "prefill")
        self.journal = BlockJournal(W, "device", self)
        self.journal.epoch = Epoch(1)
        self._blocks: tuple[BlockHash, ...] = ()
        self._digest = 0

    def blocks(self) -> tuple[BlockHash, ...]:
        return self._blocks

    def digest(self) -> tuple[int, str]:
        return len(self._blocks), f"{self._digest % (1 << 128):032x}"

    def store(self, blocks: tuple[BlockHash, ...]) -> None:
        self._blocks += blocks
        self._digest += sum(int(block, 16) for block in blocks)
        self.journal.record([Stored(None, blocks)])

    async def answer(self, delivery: Delivery) -> BlockSnapshot:
        assert isinstance(delivery.message, SnapshotRequest)
        return self.journal.part(delivery.message.chunk, delivery.message.sequence)

    async def beats(self) -> None:
        for sequence in range(1, 10_000):
            count = self.journal.count()
            blocks = (count.sequence, count.blocks, count.digest)
            report = beat(W, sequence=sequence, blocks=blocks, pages_total=4 * BLOCKS)
            await self.bus.publish(subjects.heartbeat("prefill", W), report, Headers())
            await asyncio.sleep(0.2)


@asynccontextmanager
async def holder(broker: MemoryBroker, tasks: asyncio.TaskGroup) -> AsyncIterator[Holder]:
    worker = Holder(broker)
    worker.store(names(*range(BLOCKS)))
    await worker.bus.subscribe(subjects.snapshot("prefill", W), worker.answer, concurrency=1)
    beating = tasks.create_task(worker.beats(), name="beats")
    yield worker
    beating.cancel()


async def lead(broker: MemoryBroker, tasks: asyncio.TaskGroup, folder: Path) -> SchedulerApp:
    scope = scope_on(broker, tasks, "scheduler", CONFIG, folder)
    app = SchedulerApp(scope, CONFIG)
    await start(app, scope)
    return app


async def test_an_empty_scheduler_has_the_full_index_within_three_seconds(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with running() as tasks, holder(broker, tasks):
        app = await lead(broker, tasks, tmp_path)
        await until(lambda: app.accounting()["index_blocks"] == BLOCKS)


async def test_placements_are_served_while_the_index_is_repaired(tmp_path: Path) -> None:
    """Events are lost; the gap is repaired from a snapshot in parts."""
    broker = MemoryBroker()
    async with running() as tasks, holder(broker, tasks) as worker:
        app = await lead(broker, tasks, tmp_path)
        decode = MemoryBus(broker, "decode-0", "decode")
        subject = subjects.heartbeat("decode", WorkerId("decode-0"))
        roomy = beat("decode-0", pages_total=10**6, pages_free=10**6)
        await decode.publish(subject, roomy, Headers())
        await until(lambda: app.accounting()["index_blocks"] == BLOCKS)
        gateway = MemoryBus(broker, "gateway-0", "gateway")
        worker.store(names(*range(BLOCKS, 2 * BLOCKS)))
        worker.store(names(2 * BLOCKS))
        assert worker.journal.next() and worker.journal.next()
        event = worker.journal.next()
        assert event is not None
        await worker.bus.publish(subjects.block_events("prefill", W), event, Headers())
        placed = 0
        while app.accounting()["index_blocks"] != 2 * BLOCKS + 1:
            request = ask(f"r{placed}", tokens=1000, hashes=names(*range(60)))
            reply = await gateway.request(subjects.PLACE, request, Headers(), 30.0)
            assert isinstance(reply, Placement) and reply.cached_blocks == 60
            placed += 1
            await asyncio.sleep(0.005)
        assert placed > 1
