"""Public incidents (bug-reports page) as far as a prefill worker can repeat them."""

from __future__ import annotations

import dataclasses

import pytest

from services.prefill.core import events as on
from services.prefill.core.actions import EmitTokens, FailJob, SendPages
from services.prefill.core.batching import BYPASS_LIMIT
from shared.errors import Code
from shared.ids import RequestId
from shared.wire.requests import Accepted, PrefillJob, Refused
from tests.services.prefill.rig import (
    DECODE,
    GATEWAY,
    LEASE_S,
    Rig,
    expected_token,
    job,
    limits,
)

LONG = tuple(range(100, 143))


def test_br_027_nothing_is_emitted_before_the_last_chunk() -> None:
    rig = Rig(limits=limits(chunk_tokens=16))
    rig.start(job("a", LONG[:40]))
    for _ in range(4):
        rig.turn_engine()
        assert not rig.seen(EmitTokens)
    rig.settle()
    assert len(rig.seen(EmitTokens)) == 1


def test_br_029_two_prompts_near_capacity_both_finish() -> None:
    rig = Rig(pages=10)
    for name, start in (("a", 0), ("b", 50)):
        rig.start(job(name, range(start, start + 36)))
    rig.settle()
    rig.release("a")
    rig.settle()
    rig.release("b")
    assert set(rig.first_tokens()) == {"a", "b"}
    assert rig.held == 0


def test_br_034_small_jobs_pass_a_large_head_and_the_head_still_runs() -> None:
    rig = Rig(pages=20, limits=limits(queue_limit=64))
    rig.start(job("early", range(40)))
    rig.start(job("large", range(100, 164)))
    for i in range(2 * BYPASS_LIMIT):
        rig.start(job(f"small{i}", (200 + i, 300 + i)))
    rig.settle()
    passed = [name for name in rig.first_tokens() if name.startswith("small")]
    assert len(passed) == BYPASS_LIMIT
    for name in ("early", *passed):
        rig.release(name)
    rig.settle()
    assert "large" in rig.first_tokens()
    for name in list(rig.first_tokens()):
        rig.release(name)
    rig.settle()
    assert len(rig.first_tokens()) == 2 + 2 * BYPASS_LIMIT


def test_br_035_three_times_the_pages_is_a_queue_and_not_an_exception() -> None:
    rig = Rig(pages=24, limits=limits(queue_limit=64))
    for i in range(20):
        rig.start(job(f"r{i}", range(i, i + 15)))
    done: set[RequestId] = set()
    while len(done) < 20:
        rig.settle()
        fresh = set(rig.first_tokens()) - done
        assert fresh
        for name in fresh:
            rig.release(name)
        done |= fresh
    assert rig.held == 0
    assert not rig.failures()


def test_br_036_a_job_of_five_chunks_fits_in_six_chunks_of_pages() -> None:
    rig = Rig(pages=24, limits=limits(chunk_tokens=16))
    tokens = tuple(range(80))
    rig.start(job("a", tokens))
    rig.settle()
    assert rig.first_tokens()[RequestId("a")].token_ids == (expected_token(tokens),)
    assert not {field.name for field in dataclasses.fields(PrefillJob)} & {"cache", "no_cache"}


def test_br_037_an_abort_that_nobody_reports_frees_the_pages_with_the_lease() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    ready = rig.seen(SendPages)[0].ready
    rig.tick(LEASE_S)
    assert rig.held == 0
    before = rig.machine.accounting()
    rig.send(on.PagesAcknowledged(ready.request, ready.attempt, ready.chunk))
    rig.release("a")
    assert rig.machine.accounting() == before
    assert rig.machine.counters["late_events"] == 2


def test_br_039_the_end_of_a_read_is_reported_for_nobody_and_twice() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    pairs = [(ref.page, ref.generation) for ref in rig.announced("a")]
    ticket = rig.seen(SendPages)[0].ready.ticket
    read = rig.machine.open_read(ticket, pairs, rig.clock.now())
    assert read is not None
    before = rig.machine.accounting()
    rig.send(on.ReadEnded(999))
    assert rig.machine.accounting() == before
    for _ in range(2):
        rig.send(on.ReadEnded(read))
    assert rig.machine.accounting()["open_reads"] == 0
    assert rig.held == 11


def test_br_040_a_refusal_by_decode_leaves_nothing_at_prefill() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.turn_engine()
    rig.turn_engine()
    rig.refuse(Code.INVALID_PARAMETER)
    rig.turn_engine()
    assert rig.held == 0
    assert rig.failures() == {RequestId("a"): Code.INVALID_PARAMETER}
    assert not rig.engine_work


@pytest.mark.parametrize("draining", [False, True])
def test_br_044_a_refusal_by_prefill_is_typed_and_immediate(draining: bool) -> None:
    rig = Rig(pages=4)
    if draining:
        rig.send(on.DrainStarted())
    answer = rig.start(job("a", LONG))
    assert isinstance(answer, Refused)
    assert answer.code == (Code.DRAINING if draining else Code.KV_PAGES_EXHAUSTED)
    assert rig.machine.idle


def test_br_045_a_later_failure_reaches_gateway_and_decode() -> None:
    rig = Rig()
    rig.poison = LONG[20]
    rig.start(job("a", LONG))
    rig.settle()
    (failure,) = rig.seen(FailJob)
    assert (failure.gateway, failure.decode) == (GATEWAY, DECODE)
    assert (failure.failed.request, failure.notice.request) == ("a", "a")
    assert failure.failed.code == failure.notice.code == Code.INTERNAL
    assert rig.held == 0


@pytest.mark.parametrize(
    ("max_tokens", "stops", "finish"),
    [(1, False, "length"), (2, False, None), (2, True, "stop"), (1, True, "stop")],
)
def test_br_051_length_and_stop_hold_for_the_first_token(
    max_tokens: int, stops: bool, finish: str | None
) -> None:
    rig = Rig()
    token = expected_token(LONG)
    rig.start(job("a", LONG, max_tokens=max_tokens, stop=(token,) if stops else ()))
    rig.settle()
    entry = rig.first_tokens()[RequestId("a")]
    assert (entry.token_ids, entry.finish) == ((token,), finish)
    last = rig.seen(SendPages)[-1].ready
    assert (last.first_token, last.first_finish) == (token, finish)


def test_br_051_ignore_eos_hands_the_token_over_unfinished() -> None:
    """The gateway leaves the model's end tokens out of what stops; the client's own stay."""
    for stop, finish in (((), None), ((expected_token(LONG),), "stop")):
        rig = Rig()
        order = job("a", LONG, stop=stop)
        sampling = dataclasses.replace(order.sampling, ignore_eos=True)
        rig.start(dataclasses.replace(order, sampling=sampling))
        rig.settle()
        assert rig.first_tokens()[RequestId("a")].finish == finish


def test_br_053_pages_under_a_slow_read_are_not_rewritten_by_new_load() -> None:
    rig = Rig(pages=12)
    rig.start(job("a", LONG))
    rig.settle()
    refs = rig.announced("a")
    ticket = rig.seen(SendPages)[0].ready.ticket
    pairs = [(ref.page, ref.generation) for ref in refs]
    read = rig.machine.open_read(ticket, pairs, rig.clock.now())
    assert read is not None
    rig.cancel("a")
    rig.start(job("b", range(200, 230)))
    rig.settle()
    assert rig.engine.checksums([ref.page for ref in refs]) == tuple(r.checksum for r in refs)
    assert "b" not in rig.first_tokens()
    rig.send(on.ReadEnded(read))
    rig.settle()
    assert rig.first_tokens()[RequestId("b")].token_ids == (expected_token(range(200, 230)),)


def test_br_056_overload_is_refused_at_the_door_and_the_queue_drains() -> None:
    rig = Rig(pages=32, limits=limits(queue_limit=8))
    accepted = 0
    for i in range(200):
        answer = rig.start(job(f"r{i}", range(i, i + 20)))
        accepted += isinstance(answer, Accepted)
        assert isinstance(answer, Accepted) or answer.code == Code.QUEUE_FULL  # type: ignore[union-attr]
        assert rig.machine.load(rig.clock.now()).queued_requests <= 8
        if i % 3 == 0 and rig.engine_work:
            rig.turn_engine()
        for name in set(rig.first_tokens()) - {"done"}:
            rig.release(name)
    while len(rig.first_tokens()) < accepted:
        rig.settle()
        for name in rig.first_tokens():
            rig.release(name)
    rig.settle()
    for name in rig.first_tokens():
        rig.release(name)
    assert 8 < accepted < 200
    assert rig.machine.idle
    rig.start(job("probe", range(20)))
    rig.settle()
    assert "probe" in rig.first_tokens()
