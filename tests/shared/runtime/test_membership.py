"""Joining, beating, numbering and resyncing, against a scheduler that is a few handlers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.bus.bus import Delivery
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.bus.memory_broker import MemoryBroker
from shared.errors import Code, RefusedError, StartupError
from shared.ids import BlockHash, Epoch, WorkerId
from shared.kv.radix import Removed, Stored
from shared.runtime import journal
from shared.runtime.membership import NO_COST, NO_LOAD, Membership, NothingToReport, Traits
from shared.wire import subjects
from shared.wire.blocks import (
    BlocksCleared,
    BlockSnapshot,
    BlocksRemoved,
    BlocksStored,
    SnapshotRequest,
)
from shared.wire.codec import Message
from shared.wire.requests import Refused
from shared.wire.workers import (
    BlockCount,
    CostModel,
    Heartbeat,
    Registered,
    RegisterWorker,
    WorkerLoad,
    WorkerLost,
)
from tests.contracts.wires import until
from tests.shared.runtime.rig import make_scope


def _name(number: int) -> BlockHash:
    return BlockHash(f"{number:032x}")


class Scheduler:
    """Registers everybody with epoch 7 and keeps what it hears."""

    def __init__(self, broker: MemoryBroker, refusals: list[Code] | None = None) -> None:
        self.bus = MemoryBus(broker, "scheduler-0", "scheduler")
        self.asked: list[RegisterWorker] = []
        self.beats: list[Heartbeat] = []
        self.events: list[Message] = []
        self.order: list[int] = []
        self._refusals = refusals or []

    async def listen(self) -> None:
        await self.bus.subscribe(subjects.REGISTRATIONS, self._register)
        await self.bus.subscribe(subjects.HEARTBEATS, self._beat)
        await self.bus.subscribe(subjects.BLOCK_EVENTS, self._event)

    async def snapshot(self, chunk: int, sequence: int = 0) -> Message:
        subject = subjects.snapshot("decode", WorkerId("decode-0"))
        return await self.bus.request(subject, SnapshotRequest(chunk, sequence), Headers(), 1.0)

    async def _register(self, delivery: Delivery) -> Registered:
        assert isinstance(delivery.message, RegisterWorker)
        self.asked.append(delivery.message)
        if self._refusals:
            raise RefusedError("not now", self._refusals.pop(0), retry_after_s=0.01)
        return Registered(delivery.message.worker, Epoch(7), Epoch(1))

    async def _beat(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, Heartbeat)
        assert delivery.headers.epoch == 7
        self.beats.append(delivery.message)
        self.order.append(delivery.message.blocks.sequence)

    async def _event(self, delivery: Delivery) -> None:
        self.events.append(delivery.message)
        assert isinstance(delivery.message, BlocksStored | BlocksRemoved | BlocksCleared)
        self.order.append(delivery.message.sequence)


class Worker:
    """Blocks that a test names."""

    def __init__(self) -> None:
        self.names: tuple[BlockHash, ...] = ()
        self.queued = 0

    def load(self) -> WorkerLoad:
        return WorkerLoad(self.queued, 0, 0, 0.0, 10, 5, 0)

    def cost(self) -> CostModel:
        return NO_COST

    def blocks(self) -> tuple[BlockHash, ...]:
        return self.names

    def digest(self) -> tuple[int, str]:
        return len(self.names), f"{sum(int(name, 16) for name in self.names):032x}"


@asynccontextmanager
async def _member(
    broker: MemoryBroker, worker: Worker, run_dir: Path | None = None, join: bool = True
) -> AsyncIterator[Membership]:
    async with asyncio.TaskGroup() as tasks:
        scope = make_scope("decode", broker, tasks, run_dir=run_dir)
        member = Membership(scope, Traits("model", "layout", "addr"), worker)
        if join:
            await member.join()
        yield member
        for task in asyncio.all_tasks():
            if task.get_name() == "membership":
                task.cancel()


async def test_a_worker_joins_tells_its_epoch_and_beats(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    scheduler, worker = Scheduler(memory_broker), Worker()
    await scheduler.listen()
    async with _member(memory_broker, worker, tmp_path) as member:
        assert member.epoch == 7
        await until(lambda: len(scheduler.beats) >= 3)
    first = scheduler.beats[0]
    assert [beat.sequence for beat in scheduler.beats[:3]] == [1, 2, 3]
    assert (first.role, first.state, first.epoch) == ("decode", "ready", 7)
    assert (first.model_digest, first.layout_digest) == ("model", "layout")
    assert (first.plane_address, first.probe_port) == ("addr", 8010)
    assert first.load.pages_free == 5
    assert first.blocks == BlockCount(0, 0, f"{0:032x}")
    assert json.loads((tmp_path / "decode-0.json").read_text())["epoch"] == 7
    assert len({asked.incarnation for asked in scheduler.asked}) == 1


async def test_a_scheduler_that_starts_later_or_hesitates_is_waited_for(
    memory_broker: MemoryBroker,
) -> None:
    scheduler = Scheduler(memory_broker, [Code.LOADING, Code.CONTROL_PLANE_DOWN])
    async with _member(memory_broker, Worker(), join=False) as member:
        joining = asyncio.create_task(member.join())
        await asyncio.sleep(0.05)
        assert not joining.done()
        await scheduler.listen()
        assert await joining == 7
    assert len(scheduler.asked) == 3
    assert len({asked.incarnation for asked in scheduler.asked}) == 1


async def test_a_final_refusal_is_one_clear_line(memory_broker: MemoryBroker) -> None:
    await Scheduler(memory_broker, [Code.INCOMPATIBLE_WORKERS]).listen()
    async with _member(memory_broker, Worker(), join=False) as member:
        with pytest.raises(StartupError, match="refuses decode-0: not now"):
            await member.join()


async def test_events_are_numbered_and_no_heartbeat_overtakes_them(
    memory_broker: MemoryBroker,
) -> None:
    scheduler, worker = Scheduler(memory_broker), Worker()
    await scheduler.listen()
    async with _member(memory_broker, worker) as member:
        for number in range(1, 41):
            worker.names = (*worker.names, _name(number))
            member.publish_blocks([Stored(None, (_name(number),))])
            if number % 4 == 0:
                await asyncio.sleep(0.01)
        worker.names = worker.names[1:]
        member.publish_blocks([Removed((_name(1),))])
        member.publish_cleared()
        await until(lambda: scheduler.beats[-1].blocks.sequence == 42)
    head = BlocksStored(WorkerId("decode-0"), Epoch(7), 1, "device", None, (_name(1),))
    assert scheduler.events[0] == head
    assert scheduler.events[40:] == [
        BlocksRemoved(WorkerId("decode-0"), Epoch(7), 41, "device", (_name(1),)),
        BlocksCleared(WorkerId("decode-0"), Epoch(7), 42),
    ]
    assert scheduler.order == sorted(scheduler.order)
    for beat in scheduler.beats:
        if beat.blocks.sequence <= 40:
            assert beat.blocks.blocks == beat.blocks.sequence


async def test_snapshots_come_in_parts_of_one_moment(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_BLOCKS", 4)
    scheduler, worker = Scheduler(memory_broker), Worker()
    await scheduler.listen()
    async with _member(memory_broker, worker) as member:
        empty = await scheduler.snapshot(0)
        assert empty == BlockSnapshot(WorkerId("decode-0"), Epoch(7), 0, "device", 0, 1, ())
        worker.names = tuple(_name(number) for number in range(10))
        member.publish_blocks([Stored(None, worker.names)])
        first = await scheduler.snapshot(0)
        worker.names = ()
        member.publish_cleared()
        rest = [await scheduler.snapshot(1), await scheduler.snapshot(2)]
        parts = [part for part in [first, *rest] if isinstance(part, BlockSnapshot)]
        assert [(part.sequence, part.chunk, part.chunks) for part in parts] == [
            (1, 0, 3),
            (1, 1, 3),
            (1, 2, 3),
        ]
        assert [name for part in parts for name in part.blocks] == [_name(n) for n in range(10)]
        beyond = await scheduler.snapshot(3)
        assert isinstance(beyond, Refused)
        assert beyond.code == Code.STALE


async def test_two_schedulers_read_snapshots_of_two_moments(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_BLOCKS", 1)
    scheduler, worker = Scheduler(memory_broker), Worker()
    await scheduler.listen()

    def stored(*numbers: int) -> None:
        names = tuple(_name(number) for number in numbers)
        worker.names += names
        member.publish_blocks([Stored(None, names)])

    async with _member(memory_broker, worker) as member:
        stored(1, 2)
        await scheduler.snapshot(0)
        stored(3)
        await scheduler.snapshot(0)
        old, new = await scheduler.snapshot(1, 1), await scheduler.snapshot(2, 2)
        assert isinstance(old, BlockSnapshot) and isinstance(new, BlockSnapshot)
        assert (old.sequence, old.chunks, old.blocks) == (1, 2, (_name(2),))
        assert (new.sequence, new.chunks, new.blocks) == (2, 3, (_name(3),))
        stored(4)
        await scheduler.snapshot(0)
        gone = await scheduler.snapshot(1, 1)
        assert isinstance(gone, Refused) and gone.code == Code.STALE


async def test_an_outage_leaves_a_gap_and_a_beat_follows_at_once(
    memory_broker: MemoryBroker,
) -> None:
    scheduler, worker = Scheduler(memory_broker), Worker()
    await scheduler.listen()
    async with _member(memory_broker, worker) as member:
        await until(lambda: bool(scheduler.beats))
        memory_broker.outage()
        member.publish_blocks([Stored(None, (_name(1),))])
        await asyncio.sleep(0.05)
        memory_broker.restore()
        heard = len(scheduler.beats)
        await until(lambda: len(scheduler.beats) > heard)
        assert scheduler.events == []
        assert scheduler.beats[-1].blocks.sequence == 1


async def test_lost_peers_are_named_once_and_goodbyes_are_said(
    memory_broker: MemoryBroker,
) -> None:
    scheduler = Scheduler(memory_broker)
    await scheduler.listen()
    async with _member(memory_broker, Worker()) as member:
        await until(lambda: bool(scheduler.beats))
        member.peer_lost(WorkerId("prefill-1"))
        member.peer_lost(WorkerId("prefill-0"))
        member.set_draining()
        await until(lambda: scheduler.beats[-1].state == "draining")
        told = [beat.peers_lost for beat in scheduler.beats if beat.peers_lost]
        assert told == [("prefill-0", "prefill-1")]
        await member.leave()
        await until(lambda: scheduler.beats[-1].state == "ended")


def test_a_gateway_has_nothing_to_report() -> None:
    nothing = NothingToReport()
    assert (nothing.load(), nothing.cost(), nothing.blocks()) == (NO_LOAD, NO_COST, ())
    assert nothing.digest() == (0, f"{0:032x}")


def test_a_full_journal_leaves_a_gap_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "UNSENT_EVENTS", 2)
    kept = journal.BlockJournal(WorkerId("w"), "device", NothingToReport())
    kept.record([Stored(None, (_name(number),)) for number in range(4)])
    taken = [kept.next(), kept.next(), kept.next()]
    assert [event and event.sequence for event in taken] == [1, 2, None]
    assert (kept.lost, kept.count().sequence) == (2, 4)


async def test_an_older_leader_is_not_obeyed(memory_broker: MemoryBroker) -> None:
    scheduler, worker = Scheduler(memory_broker), Worker()
    await scheduler.listen()

    def lost(leader_epoch: int) -> WorkerLost:
        return WorkerLost(WorkerId("decode-1"), "decode", Epoch(1), Epoch(leader_epoch), "silent")

    async with _member(memory_broker, worker) as member:
        assert member.obeys(lost(7)) and member.obeys(lost(9))
        assert not member.obeys(lost(8))
        assert member.obeys(lost(9))
