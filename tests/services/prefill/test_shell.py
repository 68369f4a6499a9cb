"""The whole worker over the in-memory bus and plane: handoff, pool, cancel, drain, outage."""

from __future__ import annotations

import asyncio

import pytest

from services.prefill.app import PrefillApp
from services.prefill.core.machine import Machine
from shared.bus.headers import Headers
from shared.bus.memory import MemoryBus
from shared.dataplane.weather import Mishap
from shared.errors import Code, StartupError
from shared.ids import Attempt, Epoch, RequestId
from shared.wire import subjects
from shared.wire.blocks import BlocksFound, BlocksStored, LookupBlocks, ReleaseBlocks
from shared.wire.requests import (
    Accepted,
    Acknowledged,
    Ended,
    JobFailed,
    LeaseKey,
    LeasesRenewed,
    Refused,
    RenewLeases,
    ResendTokens,
    TokenEntry,
)
from shared.wire.workers import WorkerLost
from tests.services.prefill.rig import DECODE, engine, expected_token
from tests.services.prefill.stage import EPOCH, ME, POOL_REF, Stage, config, running

LONG = tuple(range(100, 143))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def machine(stage: Stage) -> Machine:
    found = stage.app._machine
    assert found is not None
    return found


async def test_a_prompt_is_handed_over_page_by_page_and_released() -> None:
    async with running() as stage:
        assert await stage.start("a", LONG) == Accepted(ME, EPOCH)
        await stage.until(lambda: len(stage.fetched) == 11)
        entry = stage.token("a")
        assert entry is not None
        assert entry.token_ids == (expected_token(LONG),)
        assert len(stage.ready) == 3
        last = next(m for m in stage.ready if m.first_token is not None)
        assert last.first_token == entry.token_ids[0]
        assert stage.held == 11
        assert await stage.release("a") == Acknowledged()
        await stage.until(lambda: stage.held == 0)


async def test_heartbeats_and_block_events_tell_the_truth() -> None:
    async with running() as stage:
        await stage.start("a", LONG)
        await stage.until(lambda: any(beat.blocks.blocks == 10 for beat in stage.beats))
        beat = stage.beats[-1]
        assert (beat.worker, beat.epoch, beat.state) == (ME, EPOCH, "ready")
        assert (beat.load.pages_total, beat.load.placement_sequence) == (64, 1)
        assert beat.cost.token_s >= 0
        assert beat.plane_address == "memory:prefill"
        stored = [e for e in stage.events if isinstance(e, BlocksStored)]
        assert [len(event.blocks) for event in stored] == [4, 4, 2]
        assert [event.sequence for event in stored] == [1, 2, 3]
        await stage.release("a")


async def test_blocks_go_to_the_pool_and_come_back() -> None:
    async with running(kv_pages=12) as stage:
        await stage.start("a", LONG, pool=POOL_REF)
        await stage.until(lambda: len(stage.kept) == 10)
        await stage.release("a")
        await stage.start("other", range(300, 343))
        await stage.until(lambda: stage.token("other") is not None)
        await stage.release("other")
        await stage.start("b", LONG, pool=POOL_REF)
        await stage.until(lambda: stage.token("b") is not None)
        entry = stage.token("b")
        assert entry is not None
        assert (entry.token_ids, entry.cached_tokens) == ((expected_token(LONG),), 40)
        await stage.until(lambda: len(stage.returned) == 1)
        await stage.release("b")
        await stage.until(lambda: stage.held == 0)


async def test_a_damaged_pool_page_is_counted_and_computed() -> None:
    async with running(kv_pages=12) as stage:
        await stage.start("a", LONG, pool=POOL_REF)
        await stage.until(lambda: len(stage.kept) == 10)
        await stage.release("a")
        await stage.start("other", range(300, 343))
        await stage.until(lambda: stage.token("other") is not None)
        await stage.release("other")
        third = list(stage.kept.values())[2]
        stage.pool.memory.bytes[third.page, 5] ^= 1
        await stage.start("b", LONG, pool=POOL_REF)
        await stage.until(lambda: stage.token("b") is not None)
        entry = stage.token("b")
        assert entry is not None
        assert (entry.token_ids, entry.cached_tokens) == ((expected_token(LONG),), 8)
        assert machine(stage).counters["damaged_blocks"] == 1
        await stage.release("b")


async def test_a_pool_read_that_never_settles_costs_pages_but_no_token() -> None:
    async with running(kv_pages=40, fetch_timeout_s=1.0) as stage:
        await stage.start("a", LONG, pool=POOL_REF)
        await stage.until(lambda: len(stage.kept) == 10 and stage.taken["a"] == 11)
        await stage.release("a")
        for i in range(4):
            await stage.start(f"x{i}", range(300 + 40 * i, 340 + 40 * i))
            await stage.until(lambda name=f"x{i}": stage.taken[name] == 10)
            await stage.release(f"x{i}")
        # Nothing is read now: the next read is the pull of b.
        stage.fabric.script(Mishap.UNSETTLED)
        await stage.start("b", LONG, pool=POOL_REF)
        await stage.until(lambda: stage.token("b") is not None)
        stage.fabric.release()
        entry = stage.token("b")
        assert entry is not None
        assert entry.token_ids == (expected_token(LONG),)
        await stage.release("b")
        await stage.until(lambda: stage.held == 10)
        assert machine(stage).accounting()["quarantined"] == 10


async def test_a_dead_pool_is_a_miss() -> None:
    async with running() as stage:
        stage.pool.bus.vanish()
        await stage.start("a", LONG, pool=POOL_REF)
        await stage.until(lambda: stage.token("a") is not None)
        await stage.release("a")
        await stage.until(lambda: stage.held == 0)


async def test_blocks_are_lent_to_a_peer_over_bus_and_plane() -> None:
    async with running() as stage:
        await stage.start("a", LONG)
        await stage.until(lambda: len(stage.fetched) == 11)
        await stage.release("a")
        names = tuple(ref.block for ref in stage.fetched.values() if ref.block is not None)
        layout = machine(stage)._state.limits.layout_digest
        lookup = LookupBlocks(POOL_REF, layout, names, 0)
        peer = MemoryBus(stage.broker, POOL_REF.worker, "prefill")
        found = await peer.request(subjects.lookups(ME), lookup, Headers(), 5.0)
        assert isinstance(found, BlocksFound) and len(found.pages) == 10
        assert len(await stage.pool.fetch(found.owner, found.ticket, found.pages)) == 10
        release = ReleaseBlocks(POOL_REF.worker, found.ticket)
        reply = await peer.request(subjects.lookups(ME), release, Headers(), 5.0)
        assert reply == Acknowledged()
        await stage.until(lambda: stage.held == 0)


async def test_blocks_of_a_peer_are_read_and_their_link_is_reported() -> None:
    """The fake pool node plays the other prefill worker: it holds the same blocks."""
    async with running(kv_pages=12) as stage:
        await stage.start("a", LONG, pool=POOL_REF)
        await stage.until(lambda: len(stage.kept) == 10)
        await stage.release("a")
        await stage.start("other", range(300, 343))
        await stage.until(lambda: stage.token("other") is not None)
        await stage.release("other")
        peer = MemoryBus(stage.broker, POOL_REF.worker, "prefill")
        await peer.subscribe(subjects.lookups(POOL_REF.worker), stage._serve_pool)
        await stage.start("b", LONG, peer=POOL_REF)
        await stage.until(lambda: stage.token("b") is not None)
        entry = stage.token("b")
        assert entry is not None and entry.cached_tokens == 40
        assert machine(stage).counters["peer_blocks"] == 9, "one was still here"
        await stage.until(lambda: any(beat.links for beat in stage.beats))
        (read,) = [sample for beat in stage.beats for sample in beat.links]
        assert (read.peer, read.size_bytes) == (POOL_REF.worker, 9 * engine(1).memory.page_bytes)
        assert read.seconds > 0
        await stage.release("b")


async def test_announcements_survive_an_outage_of_the_bus() -> None:
    async with running() as stage:
        stage.broker.cut(ME, DECODE.worker)
        await stage.start("a", LONG)
        await stage.until(lambda: stage.token("a") is not None)
        assert not stage.ready
        stage.broker.heal()
        await stage.until(lambda: len(stage.fetched) == 11)
        await stage.release("a")


async def test_a_cancel_is_answered_and_frees_everything() -> None:
    async with running() as stage:
        await stage.start("a", tuple(range(200)))
        ended = Ended(RequestId("a"), Attempt(1))
        assert await stage.cancel("a") == ended
        assert await stage.cancel("a") == ended
        await stage.until(lambda: stage.held == 0)
        answer = await stage.start("a", LONG)
        assert isinstance(answer, Refused)
        assert answer.code == Code.STALE


async def test_a_refusal_by_decode_frees_everything_and_reaches_the_gateway() -> None:
    async with running() as stage:
        stage.refuse_pages = Code.UNKNOWN_REQUEST
        await stage.start("a", LONG)
        await stage.until(lambda: bool(stage.failed) and stage.held == 0)
        failure = stage.failed[0]
        assert isinstance(failure, JobFailed)
        assert (failure.request, failure.worker, failure.epoch) == ("a", ME, EPOCH)
        await stage.until(lambda: bool(stage.notices))


async def test_leases_are_renewed_asked_and_resent_over_the_bus() -> None:
    async with running() as stage:
        await stage.start("a", LONG)
        await stage.until(lambda: len(stage.fetched) == 11)
        keys = (LeaseKey(RequestId("a"), Attempt(1)), LeaseKey(RequestId("ghost"), Attempt(1)))
        renew = RenewLeases(DECODE.worker, DECODE.epoch, keys)
        reply = await stage.decode.bus.request(subjects.leases(ME), renew, Headers(), 5.0)
        assert reply == LeasesRenewed(keys[1:])
        wish = ResendTokens(RequestId("a"), Attempt(1), 0)
        again = await stage.gateway.request(subjects.job("prefill", ME), wish, Headers(), 5.0)
        assert isinstance(again, TokenEntry)
        assert again == stage.token("a")
        odd = await stage.gateway.request(subjects.job("prefill", ME), renew, Headers(), 5.0)
        assert isinstance(odd, Refused)
        await stage.release("a")


async def test_a_lost_decode_worker_frees_its_pages() -> None:
    async with running() as stage:
        await stage.start("a", LONG)
        await stage.until(lambda: len(stage.fetched) == 11)
        lost = WorkerLost(DECODE.worker, "decode", DECODE.epoch, Epoch(1), "silent")
        await stage.lose(lost)
        await stage.until(lambda: stage.held == 0)


async def test_drain_finishes_jobs_and_waits_for_their_release() -> None:
    async with running() as stage:
        await stage.start("a", tuple(range(200)))
        draining = asyncio.create_task(stage.app.drain())
        await stage.until(lambda: not stage.app.ready())
        answer = await stage.start("b", LONG)
        assert isinstance(answer, Refused)
        assert answer.code == Code.DRAINING
        await stage.until(lambda: stage.token("a") is not None)
        assert not draining.done()
        await stage.until(lambda: len(stage.fetched) == 50)
        await stage.release("a")
        await draining
        assert stage.held == 0
        await stage.until(lambda: stage.beats[-1].state == "ended")


async def test_drain_gives_up_at_its_deadline_and_says_so() -> None:
    async with running(drain_s=0.4) as stage:
        stage.broker.cut(ME, DECODE.worker)
        await stage.start("a", LONG)
        await stage.until(lambda: stage.token("a") is not None)
        await stage.app.drain()
        assert stage.held == 0


async def test_a_worker_that_nobody_registered_stops_at_once() -> None:
    stage, settings = Stage(), config()
    async with asyncio.TaskGroup() as tasks:
        scope = await stage.open(tasks, settings)
        stage.scheduler.vanish()
        app = PrefillApp(scope, settings, stage.plane())
        runner = tasks.create_task(app.run(scope), name="prefill")
        await asyncio.sleep(0)
        assert not app.ready()
        assert app.accounting() == {}
        await app.drain()
        async with asyncio.timeout(10.0):
            await asyncio.wait({runner})
        assert runner.cancelled()


async def test_a_missing_model_is_one_clear_line() -> None:
    stage, settings = Stage(), config(model_path="/nowhere/model.gguf")
    async with asyncio.TaskGroup() as tasks:
        scope = await stage.open(tasks, settings)
        with pytest.raises(StartupError, match="does not exist"):
            await PrefillApp(scope, settings, stage.plane()).run(scope)


def test_impossible_settings_are_refused() -> None:
    for change in (
        {"chunk_tokens": 3},
        {"chunk_tokens": -1},
        {"kv_pages": 0},
        {"lease_grace_s": -1.0},
    ):
        with pytest.raises(StartupError):
            config(**change)


def test_a_chunk_is_small_on_a_cpu_and_never_below_a_block() -> None:
    assert config(chunk_tokens=48).step_tokens == 48
    assert config(chunk_tokens=0).step_tokens == 256
    assert config(chunk_tokens=0, device="cuda:0").step_tokens == 2048
    assert config(chunk_tokens=0, block_tokens=512).step_tokens == 512


async def test_one_trace_with_every_span_closed() -> None:
    async with running() as stage:
        await stage.start("a", LONG, trace=TRACE)
        await stage.until(lambda: len(stage.fetched) == 11)
        await stage.release("a")
        await stage.until(lambda: stage.held == 0)
        spans = stage.spans.get_finished_spans()
        names = [span.name for span in spans]
        assert {names.count(name) for name in ("prefill.chunk", "prefill.seal")} == {3}
        assert {"prefill.queue", "prefill.first_token", "prefill.job"} <= set(names)
        assert {format(span.context.trace_id, "032x") for span in spans} == {TRACE[3:35]}
        assert all(trace.startswith(TRACE[:35]) for trace in stage.traceparents)
        root = next(span for span in spans if span.name == "prefill.job")
        assert root.parent is not None
        assert format(root.parent.span_id, "016x") == TRACE[36:52]


async def test_metrics_follow_the_machine() -> None:
    async with running() as stage:
        await stage.start("a", LONG)
        await stage.until(lambda: len(stage.fetched) == 11)
        value = stage.metrics.value
        await stage.until(lambda: value("baton_pages", state="leased") == 11)
        assert value("baton_leases") == 1
        assert value("baton_step_tokens_count", kind="prompt") == 3
        await stage.release("a")
        await stage.until(lambda: value("baton_pages", state="leased") == 0)
        assert value("baton_prefill_jobs_total", outcome="released") == 1
        assert value("baton_prefill_tokens_total") == 43
        assert value("baton_leaked_pages") == 0
