"""The whole worker over the in-memory bus and plane: handoff, weather, outage, drain."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from shared.bus.headers import Headers
from shared.dataplane.weather import Mishap
from shared.errors import Code
from shared.ids import Epoch, RequestId, WorkerId
from shared.wire import subjects
from shared.wire.blocks import BlocksStored
from shared.wire.requests import Accepted, Acknowledged, Ended, Refused, TokenEntry
from shared.wire.workers import WorkerLost

from .prefill_side import undisturbed
from .rig import job
from .stage import EPOCH, ME, PREFILL, Stage, running

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHUNK_TRACE = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


async def finished(stage: Stage, *jobs: object) -> None:
    """All of these ended with the undisturbed tokens, and nothing is held."""
    for wanted in jobs:
        assert hasattr(wanted, "request")
        log = await stage.finish(wanted)  # type: ignore[arg-type]
        tokens, finish = undisturbed(wanted)  # type: ignore[arg-type]
        assert (log.text(), log.finish) == (tokens, finish)
    await stage.at_rest()
    stage.machine.check()


async def test_a_handoff_pulls_verifies_generates_and_releases() -> None:
    async with running() as stage:
        wanted = job(prefill=PREFILL, temperature=0.7)
        assert await stage.submit(wanted) == Accepted(ME, EPOCH)
        await stage.handoff(wanted)
        await finished(stage, wanted)
        assert stage.released("r1") == ["committed"]
        assert stage.machine.counts["commits"] == 1
        assert stage.chunks[0].worker == ME and stage.chunks[0].epoch == EPOCH


async def test_colocated_and_handed_over_sequences_share_the_batch() -> None:
    async with running() as stage:
        jobs = [
            job(f"r{n}", [n, *range(20)], prefill=PREFILL if n % 2 else None, max_tokens=20)
            for n in range(6)
        ]
        for wanted in jobs:
            assert isinstance(await stage.submit(wanted), Accepted)
        await asyncio.gather(*(stage.handoff(one) for one in jobs if one.prefill is not None))
        await finished(stage, *jobs)


async def test_heartbeats_and_block_events_tell_the_truth() -> None:
    async with running() as stage:
        wanted = job(prefill=PREFILL, max_tokens=4)
        await stage.submit(wanted)
        await stage.handoff(wanted)
        await finished(stage, wanted)
        await stage.until(lambda: stage.beats[-1].blocks.blocks == 6)
        beat = stage.beats[-1]
        assert (beat.worker, beat.epoch, beat.state) == (ME, EPOCH, "ready")
        assert (beat.load.pages_total, beat.load.pages_free) == (64, 64)
        assert (beat.load.placement_sequence, beat.load.running_sequences) == (1, 0)
        stored = [event for event in stage.events if isinstance(event, BlocksStored)]
        assert [event.sequence for event in stored] == list(range(1, len(stored) + 1))
        assert sum(len(event.blocks) for event in stored) == 6


async def test_spans_hang_under_the_job_and_link_to_the_chunk() -> None:
    async with running() as stage:
        wanted = job(prefill=PREFILL)
        await stage.submit(wanted, TRACE)
        ready = stage.side.compute(wanted, 100)[0]
        stage.first_token(wanted, ready)
        await stage.announce(ready, CHUNK_TRACE)
        await finished(stage, wanted)
        await stage.until(
            lambda: any(s.name == "decode.job" for s in stage.spans.get_finished_spans())
        )
        spans = {span.name: span for span in stage.spans.get_finished_spans()}
        assert {
            "decode.job",
            "decode.reserve",
            "transfer.pull",
            "decode.verify",
            "decode.queue",
            "decode.generate",
            "kv.settle",
        } <= spans.keys()
        root = spans["decode.job"]
        assert root.parent is not None and f"{root.parent.span_id:016x}" in TRACE
        pull = spans["transfer.pull"]
        assert pull.parent is not None and root.context is not None
        assert pull.parent.span_id == root.context.span_id
        assert f"{pull.links[0].context.span_id:016x}" in CHUNK_TRACE
        assert pull.attributes is not None
        size = 6 * stage.side.engine.memory.page_bytes
        assert pull.attributes["baton.transfer.bytes_raw"] == size
        assert pull.attributes["baton.transfer.peer"] == "prefill-0"
        assert pull.attributes["baton.transfer.transport"] == "memory"


async def test_torn_late_and_refused_reads_change_no_token() -> None:
    async with running(pull_timeout_s=0.05) as stage:
        mishaps = (Mishap.TORN, Mishap.LOST, Mishap.REFUSED, Mishap.STRAGGLING, Mishap.LATE)
        stage.fabric.script(*mishaps)
        jobs = [job(f"r{n}", [n, *range(20)], prefill=PREFILL) for n in range(3)]
        for wanted in jobs:
            await stage.submit(wanted)
            await stage.handoff(wanted, 100)
        await finished(stage, *jobs)
        assert stage.machine.counts["pages_refetched"] > 0


async def test_a_read_that_never_settles_costs_pages_but_no_token() -> None:
    async with running(pull_timeout_s=0.05) as stage:
        stage.fabric.script(Mishap.UNSETTLED)
        wanted = job(prefill=PREFILL)
        await stage.submit(wanted)
        await stage.handoff(wanted, 100)
        await stage.until(lambda: stage.machine.counts["pages_unsettled"] == 6)
        other = job("r2", 40, prefill=None, max_tokens=30)
        await stage.submit(other)
        stage.fabric.release()
        for one in (wanted, other):
            log = await stage.finish(one)
            assert log.text() == undisturbed(one)[0]
        await stage.until(lambda: stage.app.accounting()["requests"] == 0)
        assert stage.app.accounting()["quarantined"] == 6


async def test_br_038_prefill_is_lost_mid_transfer_and_decode_goes_on() -> None:
    async with running() as stage:
        wanted = job(prefill=PREFILL)
        await stage.submit(wanted)
        ready = stage.side.compute(wanted, 8)
        await stage.announce(ready[0])
        await stage.until(lambda: stage.machine.counts["commits"] == 0)
        stage.fabric.kill("prefill")
        await stage.announce(ready[1])
        await stage.lose(WorkerLost(PREFILL.worker, "prefill", PREFILL.epoch, Epoch(1), "silent"))
        await finished(stage, wanted)


async def test_cancel_frees_everything_at_once() -> None:
    async with running() as stage:
        first, second = job("r1", prefill=PREFILL), job("r2", 40, prefill=None, max_tokens=200)
        await stage.submit(first)
        await stage.submit(second)
        await stage.announce(stage.side.compute(first, 8)[0])
        await stage.until(lambda: len(stage.logs[second.request].tokens) > 3)
        assert isinstance(await stage.cancel("r1"), Ended)
        assert isinstance(await stage.cancel("r2"), Ended)
        assert isinstance(await stage.cancel("r2"), Ended)
        await stage.at_rest()
        late = stage.side.compute(first, 8)[1]
        answer = await stage.announce(late)
        assert isinstance(answer, Refused) and answer.code == Code.STALE


async def test_leases_are_renewed_while_prefill_computes() -> None:
    async with running(lease_s=0.3) as stage:
        wanted = job(prefill=PREFILL)
        await stage.submit(wanted)
        ready = stage.side.compute(wanted, 8)
        stage.first_token(wanted, ready[-1])
        await stage.announce(ready[0])
        await stage.until(lambda: len(stage.renewed) >= 3)
        await stage.announce(ready[1])
        await stage.announce(ready[2])
        await finished(stage, wanted)
        assert stage.renewed[0].reader == ME


async def test_tokens_made_during_an_outage_arrive_after_it() -> None:
    async with running(kv_pages=100) as stage:
        wanted = job(prefill=None, max_tokens=300)
        await stage.submit(wanted)
        await stage.until(lambda: len(stage.logs[wanted.request].tokens) > 5)
        stage.broker.outage()
        await stage.until(lambda: not stage.machine.desk.sequences)
        stage.broker.restore()
        await finished(stage, wanted)
        late = await stage.resend("r1", 290)
        assert isinstance(late, TokenEntry)
        assert (len(late.token_ids), late.finish) == (10, "length")


async def test_drain_finishes_what_runs_and_refuses_the_rest() -> None:
    async with running() as stage:
        wanted = job(prefill=None, max_tokens=60)
        await stage.submit(wanted)
        draining = asyncio.create_task(stage.app.drain())
        await stage.until(lambda: not stage.app.ready())
        answer = await stage.submit(job("r2", prefill=None))
        assert isinstance(answer, Refused) and answer.code == Code.DRAINING
        await draining
        log = await stage.finish(wanted)
        assert log.text() == undisturbed(wanted)[0]
        assert not any(stage.held())
        await stage.until(lambda: stage.beats[-1].state == "ended")


async def test_drain_hands_over_what_does_not_finish_in_time() -> None:
    async with running(drain_s=0.2) as stage:
        wanted = job(prefill=PREFILL)
        await stage.submit(wanted)
        await stage.app.drain()
        await stage.until(lambda: len(stage.failed) == 1)
        assert (stage.failed[0].request, stage.failed[0].code) == ("r1", Code.DRAINING)
        assert stage.failed[0].epoch == EPOCH


async def test_a_job_waits_for_room_and_other_messages_do_not_wait_for_it() -> None:
    async with running(kv_pages=12, reserve_wait_s=5.0) as stage:
        first = job("r1", 40, prefill=PREFILL, max_tokens=2)
        await stage.submit(first)
        second = job("r2", 30, prefill=None, max_tokens=4)
        waiting = asyncio.create_task(stage.submit(second))
        answer = await stage.resend("r1")
        assert isinstance(answer, TokenEntry) and not answer.token_ids
        assert not waiting.done()
        await stage.cancel("r1")
        assert await waiting == Accepted(ME, EPOCH)
        await finished(stage, second)


async def test_messages_of_another_kind_are_refused() -> None:
    async with running() as stage:
        wrong = replace(job(prefill=None), deadline_s=0.0)
        answer = await stage.submit(wrong)
        assert isinstance(answer, Refused) and answer.code == Code.DEADLINE_EXCEEDED
        reply = await stage.prefill.request(subjects.pages(ME), Acknowledged(), Headers(), 5.0)
        assert isinstance(reply, Refused) and reply.code == Code.INVALID_PARAMETER
        unknown = await stage.resend("nobody")
        assert isinstance(unknown, Refused) and unknown.code == Code.UNKNOWN_REQUEST


async def test_a_lost_gateway_takes_its_requests_along() -> None:
    async with running() as stage:
        await stage.submit(job(prefill=PREFILL))
        gone = WorkerLost(WorkerId("gateway-0"), "gateway", Epoch(1), Epoch(1), "silent")
        await stage.lose(gone)
        await stage.at_rest()
        assert RequestId("r1") not in stage.machine.desk.sequences
