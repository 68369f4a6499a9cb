"""The whole node over a bus and a plane: bytes that go in come out, or are never given out."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shared.bus.headers import Headers
from shared.dataplane.memory import Landing, MemoryFabric
from shared.dataplane.weather import Mishap, Weather
from shared.errors import BusTimeout, Code, StartupError, TransferError
from shared.ids import BlockHash, Epoch
from shared.wire import subjects
from shared.wire.blocks import BlockSnapshot, BlocksRemoved, BlocksStored, SnapshotRequest
from shared.wire.requests import Acknowledged, Refused
from shared.wire.workers import WorkerLost
from tests.builders import running, until
from tests.services.kvpool.stage import (
    EPOCH,
    LAYOUT,
    POOL,
    WAIT_S,
    Stage,
    Worker,
    chain,
    settings,
    stage_with,
)


async def test_bytes_travel_from_owner_over_pool_to_another_worker(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner, reader = await stage.worker("prefill-0"), await stage.worker("prefill-1")
        message = owner.seal(chain(1, 2, 3))
        assert await owner.offer(message) == 3
        found = await reader.look_up(chain(1, 2, 3, 4))
        assert [ref.block for ref in found.pages] == list(chain(1, 2, 3))
        assert await reader.read(found) == [ref.checksum for ref in message.pages]
        assert not stage.at_rest()
        await reader.release(found)
        await stage.rest()
        with pytest.raises(TransferError) as refused:
            await reader.read(found)
        assert refused.value.code is Code.STALE


async def test_block_events_snapshot_and_heartbeat_tell_the_same(tmp_path: Path) -> None:
    async with stage_with(tmp_path, pages=4) as stage:
        owner = await stage.worker("prefill-0")
        await owner.offer(owner.seal(chain(1, 2)))
        await owner.offer(owner.seal(chain(5, 6, 7)))
        await until(lambda: len(stage.events) == 3)
        first, gone, second = stage.events
        kept = chain(5, 6, 7)
        assert first == BlocksStored(POOL, EPOCH, 1, "host", None, chain(1, 2))
        assert gone == BlocksRemoved(POOL, EPOCH, 2, "host", chain(1, 2)[1:])
        assert second == BlocksStored(POOL, EPOCH, 3, "host", None, kept)
        reply = await stage.scheduler.request(
            subjects.snapshot("kvpool", POOL), SnapshotRequest(0), Headers(), WAIT_S
        )
        assert isinstance(reply, BlockSnapshot)
        assert (reply.sequence, set(reply.blocks)) == (3, {*chain(1), *kept})
        await until(lambda: stage.beats[-1].blocks.sequence == 3)
        beat = stage.beats[-1]
        total = sum(int(block, 16) for block in reply.blocks) % 2**128
        assert (beat.blocks.blocks, beat.blocks.digest) == (4, f"{total:032x}")
        assert (beat.layout_digest, beat.state) == (LAYOUT.digest, "ready")
        assert (beat.load.pages_total, beat.load.pages_free) == (4, 4)


async def test_br_009_blocks_under_way_are_invisible(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner = await stage.worker("prefill-0")
        gate, landing = asyncio.Event(), asyncio.Event()

        async def hold(_: Landing) -> None:
            landing.set()
            await gate.wait()

        stage.fabric.gate = hold
        offering = asyncio.create_task(owner.offer(owner.seal(chain(1, 2))))
        await landing.wait()
        assert (await owner.look_up(chain(1, 2))).pages == ()
        gate.set()
        assert await offering == 2
        assert len((await owner.look_up(chain(1, 2))).pages) == 2


async def test_bytes_that_differ_from_their_checksum_are_not_kept(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner = await stage.worker("prefill-0")
        message = owner.seal(chain(1, 2, 3))
        owner.arena.run(message.pages[1].page, 1)[100] ^= 1
        assert await owner.offer(message) == 1
        found = await owner.look_up(chain(1, 2, 3))
        assert len(found.pages) == 1
        await owner.release(found)
        await stage.rest()


async def test_flip_in_the_pool_is_reported_and_forgotten(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner = await stage.worker("prefill-0")
        message = owner.seal(chain(1, 2))
        await owner.offer(message)
        found = await owner.look_up(chain(1, 2))
        await owner.release(found, corrupted=chain(1, 2)[1:])
        assert stage.shell.machine.cache.blocks() == chain(1)
        assert await owner.offer(message) == 2


@pytest.mark.parametrize("mishap", [Mishap.REFUSED, Mishap.LOST, Mishap.LATE, Mishap.STRAGGLING])
async def test_failed_reads_leave_nothing_behind(tmp_path: Path, mishap: Mishap) -> None:
    async with stage_with(tmp_path, pull_timeout_s=0.1) as stage:
        owner = await stage.worker("prefill-0")
        message = owner.seal(chain(1, 2))
        stage.fabric.script(mishap)
        assert await owner.offer(message) == 0
        await stage.rest()
        stage.fabric.release()
        assert await owner.offer(message) == 2


async def test_pages_of_an_unsettled_read_stay_out_of_use(tmp_path: Path) -> None:
    async with stage_with(tmp_path, pages=3, pull_timeout_s=0.1) as stage:
        owner = await stage.worker("prefill-0")
        stage.fabric.script(Mishap.UNSETTLED)
        assert await owner.offer(owner.seal(chain(1, 2))) == 0
        assert stage.shell.machine.cache.counts().quarantined == 2
        good = owner.seal(chain(7, 8))
        assert await owner.offer(good) == 1
        stage.fabric.release()
        found = await owner.look_up(chain(7))
        assert await owner.read(found) == [good.pages[0].checksum]


async def test_owner_dies_while_it_is_read(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner = await stage.worker("prefill-0")
        landing = asyncio.Event()

        async def hold(_: Landing) -> None:
            landing.set()
            await asyncio.Event().wait()

        stage.fabric.gate = hold
        offering = asyncio.create_task(owner.offer(owner.seal(chain(1, 2))))
        await landing.wait()
        stage.fabric.kill("prefill-0")
        assert await offering == 0
        await stage.rest()
        await until(lambda: any("prefill-0" in beat.peers_lost for beat in stage.beats))


async def test_loss_of_a_reader_ends_its_leases(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner, reader = await stage.worker("prefill-0"), await stage.worker("prefill-1")
        await owner.offer(owner.seal(chain(1)))
        await reader.look_up(chain(1))
        lost = WorkerLost(reader.ref.worker, "prefill", reader.ref.epoch, Epoch(1), "silent")
        await stage.scheduler.publish(subjects.LOST, lost, Headers())
        await stage.rest()


async def test_lease_that_nobody_ends_runs_out(tmp_path: Path) -> None:
    async with stage_with(tmp_path, lease_s=0.3) as stage:
        owner = await stage.worker("prefill-0")
        await owner.offer(owner.seal(chain(1)))
        found = await owner.look_up(chain(1))
        await stage.rest()
        with pytest.raises(TransferError):
            await owner.read(found)


async def test_offer_waits_no_longer_than_its_message(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner = await stage.worker("prefill-0")
        stage.fabric.script(Mishap.LATE)
        with suppress(BusTimeout):  # the answer and the end of patience race
            assert await owner.offer(owner.seal(chain(1)), timeout_s=0.3) == 0
        await stage.rest()
        assert stage.shell.machine.counts["offers_pull_failed"] == 1


@pytest.mark.parametrize("seed", range(4))
async def test_in_any_weather_only_true_bytes_are_read(tmp_path: Path, seed: int) -> None:
    weather = Weather(
        refused=0.1, late=0.05, torn=0.05, lost=0.1, straggling=0.1, unsettled=0.05,
        shuffled=True, twice=True,
    )  # fmt: skip
    fabric = MemoryFabric(seed, weather)
    async with stage_with(tmp_path, pages=40, pull_timeout_s=0.02, fabric=fabric) as stage:
        workers = [await stage.worker(f"prefill-{index}") for index in range(3)]
        proofs: dict[BlockHash, int] = {}

        async def live(worker: Worker, chance: random.Random) -> int:
            whole = 0
            for _ in range(12):
                blocks = chain(*(chance.randrange(2) for _ in range(4)))
                message = worker.seal(blocks, proofs)
                await worker.offer(message)
                found = await worker.look_up(blocks)
                with suppress(TransferError):
                    sums = await worker.read(found, timeout_s=0.02)
                    assert sums == [proofs[block] for block in blocks[: len(sums)]]
                    whole += len(sums)
                await worker.release(found)
                worker.forget(message)
            return whole

        lives = [live(worker, random.Random(seed + at)) for at, worker in enumerate(workers)]
        assert sum(await asyncio.gather(*lives)) > 0
        stage.fabric.release()
        lost = stage.shell.machine.counts["pages_lost"]
        await until(lambda: stage.shell.machine.at_rest)
        stage.shell.machine.check()
        assert stage.shell.machine.cache.counts().quarantined == lost


async def test_spans_hang_under_the_request_that_caused_them(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner = await stage.worker("prefill-0")
        await owner.offer(owner.seal(chain(1, 2)))
        await owner.look_up(chain(1, 2))
        spans = {span.name: span for span in stage.spans.get_finished_spans()}
        assert spans.keys() == {"transfer.pull", "kvpool.store", "kvpool.lookup"}
        for span in spans.values():
            assert span.context is not None
            assert span.parent is not None
            assert f"{span.context.trace_id:032x}" == "1" * 32
            assert f"{span.parent.span_id:016x}" == "2" * 16
        pulled = spans["transfer.pull"].attributes or {}
        assert pulled["baton.transfer.bytes_raw"] == 2 * LAYOUT.page_bytes
        assert pulled["baton.transfer.transport"] == "memory"


async def test_metrics_follow_the_machine(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner = await stage.worker("prefill-0")
        await owner.offer(owner.seal(chain(1, 2)))
        await owner.release(await owner.look_up(chain(1, 2)))
        await owner.look_up(chain(9))
        value = stage.scope.metrics.value
        await until(lambda: value("baton_pool_lookups_total", result="miss") == 1)
        assert value("baton_pool_lookups_total", result="hit") == 1
        assert value("baton_pool_hit_tokens_total", tier="host") == 32
        assert value("baton_pages", state="cached") == 2
        assert value("baton_pool_bytes", tier="host", state="cached") == 2 * LAYOUT.page_bytes
        assert value("baton_leaked_pages") == 0


async def test_drain_refuses_new_work_and_waits_for_the_reader(tmp_path: Path) -> None:
    stage = Stage()
    async with running() as tasks:
        await stage.open(tasks, settings(), tmp_path)
        life = tasks.create_task(stage.app.run(stage.scope), name="app")
        await until(stage.app.ready)
        owner = await stage.worker("prefill-0")
        await owner.offer(owner.seal(chain(1)))
        found = await owner.look_up(chain(1))
        await stage.app.drain()
        assert not stage.app.ready()
        reply = await owner.ask(owner.seal(chain(2)))
        assert isinstance(reply, Refused)
        assert reply.code == Code.DRAINING
        assert len(await owner.read(found)) == 1
        assert not life.done()
        await owner.release(found)
        async with asyncio.timeout(WAIT_S):
            await life
        await until(lambda: stage.beats[-1].state == "ended")


async def test_message_that_no_pool_answers_is_refused(tmp_path: Path) -> None:
    async with stage_with(tmp_path) as stage:
        owner = await stage.worker("prefill-0")
        reply = await owner.ask(Acknowledged())
        assert isinstance(reply, Refused)
        assert reply.code == Code.INVALID_PARAMETER
        await stage.rest()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host_bytes": 100}, "host_bytes"),
        ({"model_path": ""}, "no model"),
        ({"model_path": "/nowhere/model.gguf"}, "does not exist"),
    ],
)
async def test_impossible_start_is_one_clear_line(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    stage = Stage()
    with pytest.raises(ExceptionGroup) as group:
        async with running() as tasks:
            await stage.open(tasks, settings(**fields), tmp_path)
            await stage.app.run(stage.scope)
    (error,) = group.value.exceptions
    assert isinstance(error, StartupError)
    assert words in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize("name", ["host_bytes", "pull_pages", "pull_timeout_s", "offer_limit"])
def test_settings_below_one_are_refused(name: str) -> None:
    with pytest.raises(StartupError, match=name):
        settings(**{name: 0})


def test_pool_runs_without_torch() -> None:
    program = "import sys, services.kvpool.app; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
