"""The control plane forgets or is rebuilt, on real processes: it holds the only copy of nothing."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.nats import NatsBus
from shared.ids import BlockHash, Epoch, WorkerId
from shared.kv.radix import Stored
from shared.runtime.journal import BlockJournal
from shared.wire import subjects
from shared.wire.blocks import BlockSnapshot, SnapshotRequest
from shared.wire.workers import BlockCount
from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.test_recovery import SCHEDULERS, accounted, leader, prompt, streams
from tests.services.scheduler.builders import beat, names

pytestmark = pytest.mark.process

BLOCKS = 100_000


@pytest.mark.faults
async def test_a_store_that_forgot_everything_costs_no_stream(tmp_path: Path) -> None:
    """F50: NATS comes back without its store. Epochs are taken anew, above all that were."""
    async with running_cluster(tmp_path, Wish(scheduler=2)) as cluster:
        calm = await streams(cluster, 800)
        first = await leader(cluster, *SCHEDULERS)
        epoch = await accounted(cluster, first, "leader_epoch")
        under_way = asyncio.create_task(streams(cluster, 800), name="streams")
        await asyncio.sleep(0.5)
        await cluster.stop_nats()
        shutil.rmtree(cluster.local.nats.folder / "jetstream")
        await cluster.start_nats()
        disturbed = await under_way
        assert all(answer.complete for answer in disturbed), disturbed
        assert [answer.text for answer in disturbed] == [answer.text for answer in calm]
        second = await leader(cluster, *SCHEDULERS)
        async with asyncio.timeout(10):
            while await accounted(cluster, second, "leader_epoch") <= epoch:
                second = await leader(cluster, *SCHEDULERS)
        known = (await accounted(cluster, second, "workers"))["decode-0"]
        await cluster.kill("decode-0")
        await cluster.restart("decode-0")
        async with asyncio.timeout(5):
            while (await accounted(cluster, second, "workers"))["decode-0"] <= known:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        assert (await cluster.complete(prompt(1), max_tokens=4)).complete
        await cluster.until_nothing_is_held(5.0)


class Hoard:
    """A prefill worker that does nothing but hold a hundred thousand blocks."""

    name = WorkerId("prefill-9")

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus
        self._held = names(*range(BLOCKS))
        total = sum(int(block, 16) for block in self._held)
        self._count = BlockCount(1, BLOCKS, f"{total % (1 << 128):032x}")
        self._journal = BlockJournal(self.name, "device", self)
        self._journal.epoch = Epoch(1)
        self._journal.record([Stored(None, self._held)])

    def blocks(self) -> tuple[BlockHash, ...]:
        return self._held

    def digest(self) -> tuple[int, str]:
        return BLOCKS, self._count.digest

    async def answer(self, delivery: Delivery) -> BlockSnapshot:
        assert isinstance(delivery.message, SnapshotRequest)
        return self._journal.part(delivery.message.chunk, delivery.message.sequence)

    async def beat_for_ever(self) -> None:
        await self._bus.subscribe(subjects.snapshot("prefill", self.name), self.answer)
        count = (1, BLOCKS, self._count.digest)
        for sequence in range(1, 1000):
            report = beat(
                self.name, sequence=sequence, model="none", blocks=count, pages_total=BLOCKS
            )
            await self._bus.publish(subjects.heartbeat("prefill", self.name), report, Headers())
            await asyncio.sleep(1.0)


async def full_index(cluster: TestCluster, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while await accounted(cluster, "scheduler-0", "index_blocks") < BLOCKS:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


async def test_a_restarted_scheduler_knows_a_hundred_thousand_blocks_in_seconds(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        nats = cluster.local.nats
        bus = await NatsBus.connect(
            nats.url, "prefill", str(nats.credentials("prefill")), name="hoard"
        )
        hoard = asyncio.create_task(Hoard(bus).beat_for_ever(), name="hoard")
        await full_index(cluster, 10.0)
        await cluster.kill("scheduler-0")
        began = time.monotonic()
        await cluster.restart("scheduler-0")
        ready_s = time.monotonic() - began
        await full_index(cluster, 60.0)
        print(f"full index {time.monotonic() - began:.2f} s after the start, ready {ready_s:.2f} s")
        assert (await cluster.complete(prompt(1), max_tokens=4)).complete
        hoard.cancel()
        await bus.close()
