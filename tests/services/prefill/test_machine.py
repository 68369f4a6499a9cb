"""The prefill machine: life of a job, duplicates and attempts, cancel, leases, pool, failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from services.prefill.core import events as on
from services.prefill.core.actions import (
    JobClosed,
    Offer,
    PublishBlocks,
    ReleasePool,
    RunStep,
    SendPages,
    Traced,
)
from shared.errors import Code
from shared.ids import Epoch, RequestId, WorkerId
from shared.kv.hashing import block_hashes
from shared.wire.requests import (
    Accepted,
    Acknowledged,
    Ended,
    LeasesRenewed,
    Refused,
    ResendTokens,
    TokenEntry,
    WorkerRef,
)
from shared.wire.workers import WorkerLost
from tests.services.prefill.rig import (
    BLOCK,
    DECODE,
    GATEWAY,
    GRACE_S,
    IDENTITY,
    LEASE_S,
    POOL,
    Rig,
    expected_token,
    job,
    limits,
)

LONG = tuple(range(100, 143))
"""43 tokens: 10 full blocks and a partial page; three chunks of at most 16 tokens."""


def code_of(answer: object) -> str:
    assert isinstance(answer, Refused)
    return answer.code


def test_a_job_is_computed_in_chunks_and_handed_over_page_by_page() -> None:
    rig = Rig()
    assert rig.start(job("a", LONG)) == Accepted(WorkerId("prefill-0"), Epoch(3))
    rig.settle()
    chunks = [[len(item.tokens) for item in step.items] for step in rig.seen(RunStep)]
    assert chunks == [[16], [16], [11]]
    ready = [action.ready for action in rig.seen(SendPages)]
    assert [len(message.pages) for message in ready] == [4, 4, 3]
    assert [message.first_token for message in ready[:2]] == [None, None]
    entry = rig.first_tokens()[RequestId("a")]
    assert entry.token_ids == (expected_token(LONG),)
    assert ready[2].first_token == entry.token_ids[0]
    assert (entry.index, entry.finish, entry.cached_tokens) == (0, None, 0)
    refs = rig.announced("a")
    assert [ref.position for ref in refs] == list(range(11))
    assert [ref.tokens for ref in refs] == [BLOCK] * 10 + [3]
    assert refs[-1].block is None
    assert rig.held == 11
    assert rig.release("a") == Acknowledged()
    assert rig.held == 0
    assert rig.machine.idle


def test_a_later_attempt_goes_on_at_its_index() -> None:
    rig = Rig()
    rig.start(dataclasses.replace(job("a", LONG, attempt=2), first_index=5))
    assert rig.engine_work
    rig.settle()
    draws = [item.draw for step in rig.seen(RunStep) for item in step.items]
    assert [draw.position for draw in draws if draw is not None] == [5]
    assert rig.first_tokens()[RequestId("a")].index == 5


def test_a_new_tail_is_offered_with_its_cached_head() -> None:
    rig = Rig()
    rig.start(job("a", LONG[:20]))
    rig.settle()
    rig.start(job("b", LONG, pool=POOL))
    rig.settle()
    assert len(rig.pool) == 10
    rig.start(job("c", LONG, pool=POOL))
    rig.settle()
    assert len(rig.seen(Offer)) == 1


def test_tokens_leave_before_the_pages_are_summed() -> None:
    rig = Rig()
    rig.start(job("a", LONG[:8]))
    rig.turn_engine()
    assert RequestId("a") in rig.first_tokens()
    assert not rig.seen(SendPages)
    assert rig.engine_work


def test_the_next_step_starts_while_pages_wait_for_decode() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.turn_engine()
    rig.turn_engine()
    assert rig.unanswered
    assert isinstance(rig.engine_work[0], RunStep)


def test_several_short_jobs_share_a_step() -> None:
    rig = Rig()
    rig.start(job("z", LONG[:16]))
    for name, start in (("a", 0), ("b", 30), ("c", 60)):
        rig.start(job(name, range(start, start + 5)))
    rig.settle()
    assert [len(step.items) for step in rig.seen(RunStep)] == [1, 3]


def test_a_cached_prefix_is_announced_before_anything_is_computed() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    rig.release("a")
    rig.start(job("b", LONG))
    assert [len(action.ready.pages) for action in rig.unanswered] == [10]
    rig.settle()
    entry = rig.first_tokens()[RequestId("b")]
    assert entry.token_ids == (expected_token(LONG),)
    assert entry.cached_tokens == 40


def test_the_cached_prefix_never_covers_the_last_prompt_token() -> None:
    rig = Rig()
    prompt = LONG[: 4 * BLOCK]
    for name in ("a", "b"):
        rig.start(job(name, prompt))
        rig.settle()
        rig.release(name)
    first = rig.first_tokens()
    assert first[RequestId("b")].cached_tokens == 3 * BLOCK
    assert first[RequestId("a")].token_ids == first[RequestId("b")].token_ids


def test_siblings_that_arrive_together_share_the_prefix() -> None:
    rig = Rig(limits=limits(chunk_tokens=64))
    rig.start(job("x", (1, 2, 3)))
    rig.start(job("a", LONG))
    rig.start(job("b", LONG))
    rig.settle()
    first = rig.first_tokens()
    assert first[RequestId("b")].cached_tokens == 40
    assert first[RequestId("a")].token_ids == first[RequestId("b")].token_ids
    assert rig.machine.counters["prompt_tokens"] == 3 + 43 + 3


def test_another_namespace_finds_nothing() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    rig.start(job("b", LONG, namespace="other"))
    rig.settle()
    assert rig.first_tokens()[RequestId("b")].cached_tokens == 0


def test_sealed_blocks_are_published_once_and_in_order() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.start(job(name, LONG))
        rig.settle()
    stored = [b for action in rig.seen(PublishBlocks) for e in action.events for b in e.blocks]
    assert len(stored) == 10
    assert stored == list(rig.cache.blocks())


# -- duplicates, attempts, the door ----------------------------------------------------------


def test_a_duplicate_job_gets_the_same_answer_and_runs_once() -> None:
    rig = Rig()
    first = rig.start(job("a", LONG))
    assert rig.start(job("a", LONG)) == first
    rig.settle()
    assert rig.start(job("a", LONG)) == first
    assert rig.machine.counters["prompt_tokens"] == 43
    rig.release("a")
    assert code_of(rig.start(job("a", LONG))) == Code.STALE


def test_a_newer_attempt_ends_the_older_one() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    assert isinstance(rig.start(job("a", LONG, attempt=2)), Accepted)
    assert code_of(rig.start(job("a", LONG))) == Code.STALE
    rig.settle()
    assert {e.attempt for e in rig.first_tokens().values()} == {2}
    assert {closed.outcome for closed in rig.seen(JobClosed)} == {"superseded"}
    rig.release("a", attempt=2)
    assert rig.machine.idle
    assert rig.held == 0


def test_a_cancel_that_overtakes_its_job_wins() -> None:
    rig = Rig()
    assert isinstance(rig.cancel("a", 2), Ended)
    assert code_of(rig.start(job("a", LONG, attempt=2))) == Code.STALE
    assert isinstance(rig.start(job("a", LONG, attempt=3)), Accepted)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"tokens": ()}, Code.INVALID_PARAMETER),
        ({"tokens": (1, 512)}, Code.INVALID_PARAMETER),
        ({"tokens": (-1, 5)}, Code.INVALID_PARAMETER),
        ({"tokens": (1,), "max_tokens": 0}, Code.INVALID_PARAMETER),
        ({"tokens": (1,) * 4097}, Code.CONTEXT_LENGTH_EXCEEDED),
        ({"tokens": (1,), "deadline_s": 0.0}, Code.DEADLINE_EXCEEDED),
        ({"tokens": (1,) * (64 * BLOCK + 1)}, Code.KV_PAGES_EXHAUSTED),
    ],
)
def test_a_job_that_cannot_run_is_refused_at_the_door(change: dict[str, object], code: str) -> None:
    rig = Rig()
    assert code_of(rig.start(job("a", **change))) == code  # type: ignore[arg-type]
    assert rig.machine.idle


def test_a_full_queue_refuses_with_a_time_to_wait() -> None:
    rig = Rig(limits=limits(queue_limit=2))
    answers = [rig.start(job(f"r{i}", range(i, i + 30))) for i in range(6)]
    refused = answers[-1]
    assert isinstance(refused, Refused)
    assert refused.code == Code.QUEUE_FULL
    assert refused.retry_after_s is not None
    assert 1.0 <= refused.retry_after_s <= 30.0


# -- cancel ----------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(7))
def test_a_cancel_at_any_point_gives_everything_back(turns: int) -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    for _ in range(turns):
        if rig.engine_work:
            rig.turn_engine()
    assert rig.cancel("a") == Ended(RequestId("a"), job("a", LONG).attempt)
    assert rig.cancel("a") == Ended(RequestId("a"), job("a", LONG).attempt)
    rig.settle()
    assert rig.held == 0
    assert rig.machine.idle
    assert not rig.failures()


def test_a_cancel_in_mid_chunk_publishes_nothing_unsealed() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.cancel("a")
    rig.settle()
    assert not rig.seen(SendPages)
    assert not rig.seen(PublishBlocks)


# -- leases ----------------------------------------------------------------------------------


def test_renewals_keep_pages_and_their_absence_frees_them() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    for _ in range(4):
        rig.tick(LEASE_S - 1)
        assert rig.renew("a") == LeasesRenewed(())
    rig.tick(LEASE_S)
    assert rig.held == 0
    assert [key.request for key in _gone(rig.renew("a"))] == ["a"]
    assert rig.machine.counters["lease_expiries"] == 1


def test_every_lease_is_visited_by_the_sweep() -> None:
    rig = Rig()
    for i in range(3):
        rig.start(job(f"r{i}", range(10 * i, 10 * i + 9)))
    rig.settle()
    rig.tick(LEASE_S - 1)
    rig.renew("r0", "r2")
    rig.tick(1)
    assert [key.request for key in _gone(rig.renew("r0", "r1", "r2"))] == ["r1"]


def test_a_queued_job_is_not_gone() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    assert rig.renew("a") == LeasesRenewed(())
    assert [key.request for key in _gone(rig.renew("b"))] == ["b"]


def test_another_incarnation_neither_renews_nor_releases() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    old = WorkerRef(DECODE.worker, Epoch(DECODE.epoch - 1), DECODE.plane_address)
    assert len(_gone(rig.renew("a", reader=old))) == 1
    assert rig.release("a", reader=old) == Acknowledged()
    assert rig.held == 11
    assert rig.machine.counters["fenced_epoch"] == 1


def test_a_lease_that_lapses_in_mid_job_fails_the_attempt() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.turn_engine()
    rig.turn_engine()
    rig.tick(LEASE_S)
    assert rig.failures() == {RequestId("a"): Code.WORKER_LOST}
    rig.settle()
    assert rig.held == 0


def test_a_refusal_by_decode_ends_the_job() -> None:
    for code, told in (("stale", {}), ("unknown_request", {"a": "unknown_request"})):
        rig = Rig()
        rig.start(job("a", LONG))
        rig.turn_engine()
        rig.turn_engine()
        rig.refuse(code)
        rig.settle()
        assert rig.failures() == told
        assert rig.held == 0
        assert rig.machine.idle


def test_a_lost_decode_worker_ends_its_jobs() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    for epoch, held in ((DECODE.epoch - 1, 11), (DECODE.epoch, 0)):
        lost = WorkerLost(DECODE.worker, "decode", Epoch(epoch), Epoch(1), "silent")
        rig.send(on.PeerLost(lost))
        assert rig.held == held


def test_a_lost_gateway_ends_the_jobs_of_that_incarnation() -> None:
    for epoch, held in ((4, 11), (5, 0)):
        rig = Rig()
        order = job("a", LONG)
        rig.ask(lambda call, o=order: on.JobArrived(call, o, "t", "u", gateway_epoch=5))
        rig.settle()
        lost = WorkerLost(GATEWAY, "gateway", Epoch(epoch), Epoch(1), "silent")
        rig.send(on.PeerLost(lost))
        assert rig.held == held


# -- deadlines, drain ------------------------------------------------------------------------


def test_a_job_ends_at_its_deadline_wherever_it_is() -> None:
    rig = Rig()
    for i in range(5):
        rig.start(job(f"r{i}", range(i, i + 40), deadline_s=10.0))
    for _ in range(8):
        rig.turn_engine()
    rig.tick(10.0)
    assert set(rig.failures().values()) == {Code.DEADLINE_EXCEEDED}
    rig.settle()
    rig.tick(GRACE_S)
    assert rig.machine.idle
    assert rig.held == 0


def test_a_draining_worker_finishes_and_takes_nothing_new() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.send(on.DrainStarted())
    assert code_of(rig.start(job("b", LONG))) == Code.DRAINING
    rig.settle()
    assert RequestId("a") in rig.first_tokens()
    assert not rig.machine.idle
    rig.send(on.DrainExpired())
    assert rig.machine.idle
    assert rig.held == 0


# -- pages run short -------------------------------------------------------------------------


def test_a_job_waits_for_pages_and_then_runs() -> None:
    rig = Rig(pages=12)
    rig.start(job("a", LONG))
    rig.start(job("b", range(200, 230)))
    rig.settle()
    assert set(rig.first_tokens()) == {"a"}
    rig.release("a")
    rig.settle()
    assert rig.first_tokens()[RequestId("b")].token_ids == (expected_token(range(200, 230)),)


# -- the pool --------------------------------------------------------------------------------


def _filled_pool() -> Rig:
    """A worker that offered LONG to the pool and then lost its own cache."""
    first = Rig()
    first.start(job("a", LONG, pool=POOL))
    first.settle()
    assert len(first.pool) == 10
    assert first.machine.counters["blocks_kept"] == 10
    fresh = Rig()
    fresh.pool = first.pool
    return fresh


def test_blocks_come_back_from_the_pool() -> None:
    rig = _filled_pool()
    rig.start(job("b", LONG, pool=POOL))
    rig.settle()
    entry = rig.first_tokens()[RequestId("b")]
    assert (entry.token_ids, entry.cached_tokens) == ((expected_token(LONG),), 40)
    assert len(rig.seen(ReleasePool)) == 1
    assert not rig.offers
    assert rig.machine.counters["prompt_tokens"] == 3


def test_a_damaged_page_from_the_pool_is_computed_instead() -> None:
    rig = _filled_pool()
    rig.start(job("b", LONG, pool=POOL))
    rig.look_up()
    rig.pull(damage=True)
    rig.settle()
    entry = rig.first_tokens()[RequestId("b")]
    assert (entry.token_ids, entry.cached_tokens) == ((expected_token(LONG),), 0)
    assert rig.machine.counters["damaged_blocks"] == 10


def test_an_answer_about_other_blocks_is_not_pulled() -> None:
    rig = _filled_pool()
    other = block_hashes(IDENTITY, range(7))[0]
    rig.start(job("b", LONG, pool=POOL))
    for block, value in list(rig.pool.items())[:1]:
        rig.pool[other] = value
        del rig.pool[block]
    rig.look_up()
    assert not rig.pulls
    rig.settle()
    assert rig.first_tokens()[RequestId("b")].token_ids == (expected_token(LONG),)


def test_a_cancel_during_a_pull_keeps_the_targets_until_it_ended() -> None:
    rig = _filled_pool()
    rig.start(job("b", LONG, pool=POOL))
    rig.look_up()
    rig.cancel("b")
    assert rig.held == 11
    rig.pull()
    assert rig.held == 0
    assert len(rig.seen(ReleasePool)) == 1


@pytest.mark.parametrize("cancelled", [False, True])
def test_targets_of_an_unsettled_pull_never_come_back(cancelled: bool) -> None:
    rig = _filled_pool()
    rig.start(job("b", LONG, pool=POOL))
    rig.look_up()
    if cancelled:
        rig.cancel("b")
    wish = rig.pulls.pop()
    rig.send(on.PullEnded(wish.request, wish.attempt, (), settled=False))
    rig.settle()
    rig.release("b")
    assert rig.machine.accounting()["quarantined"] == 10
    if not cancelled:
        assert rig.first_tokens()[RequestId("b")].token_ids == (expected_token(LONG),)


def test_a_late_answer_of_the_pool_gives_its_lease_back() -> None:
    rig = _filled_pool()
    rig.start(job("b", LONG, pool=POOL))
    rig.cancel("b")
    rig.look_up()
    assert not rig.pulls
    assert len(rig.seen(ReleasePool)) == 1


def test_an_offer_outlives_its_job_but_not_its_lease() -> None:
    rig = Rig()
    rig.start(job("a", LONG, pool=POOL))
    rig.look_up()
    while rig.engine_work:
        rig.turn_engine()
    rig.release("a")
    assert rig.held == 10
    rig.tick(LEASE_S)
    assert rig.held == 0
    rig.take_offer()
    assert rig.machine.counters["late_events"] == 1


# -- tokens again, failures, reads -----------------------------------------------------------


def _resend(rig: Rig, attempt: int = 1) -> object:
    wish = ResendTokens(RequestId("a"), job("a", LONG, attempt).attempt, 0)
    return rig.ask(lambda call: on.ResendArrived(call, wish))


def test_the_first_token_can_be_asked_for_again() -> None:
    rig = Rig()
    assert code_of(_resend(rig)) == Code.UNKNOWN_REQUEST
    rig.start(job("a", LONG))
    alive = _resend(rig)
    assert isinstance(alive, TokenEntry)
    assert (alive.token_ids, alive.finish) == ((), None)
    rig.settle()
    assert _resend(rig) == rig.first_tokens()[RequestId("a")]
    rig.release("a")
    assert _resend(rig) == rig.first_tokens()[RequestId("a")]
    assert code_of(_resend(rig, attempt=2)) == Code.UNKNOWN_REQUEST


def test_a_job_that_breaks_the_engine_fails_alone() -> None:
    rig = Rig(limits=limits(chunk_tokens=64))
    rig.poison = 13
    rig.start(job("x", (1, 2, 3)))
    for name, tokens in (("a", range(20, 30)), ("b", (13, 14)), ("c", range(40, 50))):
        rig.start(job(name, tokens))
    rig.settle()
    assert rig.failures() == {RequestId("b"): Code.INTERNAL}
    assert set(rig.first_tokens()) == {"x", "a", "c"}


def test_a_read_outlives_the_lease_and_keeps_the_pages() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    ticket = rig.seen(SendPages)[0].ready.ticket
    pairs = [(ref.page, ref.generation) for ref in rig.announced("a")]
    read = rig.machine.open_read(ticket, pairs, rig.clock.now())
    assert read is not None
    rig.release("a")
    assert rig.machine.accounting()["quarantined"] == 11
    assert rig.machine.open_read(ticket, pairs, rig.clock.now()) is None
    rig.send(on.ReadEnded(read))
    assert rig.held == 0
    rig.send(on.ReadEnded(read))


@pytest.mark.parametrize(
    "make",
    [
        lambda r: on.PoolMissed(r, 1, "late"),
        lambda r: on.PullEnded(r, 1, ()),
        lambda r: on.StepEnded(99, (), 0.1),
        lambda r: on.StepFailed(99, "late"),
        lambda r: on.PagesSummed(99, ()),
        lambda r: on.PagesAcknowledged(r, 1, 0),
        lambda r: on.PagesRefused(r, 1, 0, "stale"),
        lambda r: on.OfferEnded(r, 1, 3),
    ],
)
def test_events_about_nothing_are_counted_and_ignored(make: Callable[[str], on.Event]) -> None:
    rig = Rig()
    assert rig.send(make("ghost")) == []
    assert rig.machine.counters["late_events"] == 1


def test_an_unknown_event_raises_type_error() -> None:
    with pytest.raises(TypeError, match="not an event"):
        Rig().machine.handle("surprise", 0.0)  # type: ignore[arg-type]


def test_the_story_of_a_request_names_its_steps() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    rig.release("a")
    story = rig.machine.story(RequestId("a"))
    for words in ("accepted with 43 tokens", "announced pages 0..3", "first token", "released"):
        assert words in story


def test_facts_for_the_trace_cover_the_job() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    rig.release("a")
    facts = rig.seen(Traced)
    names = [fact.name for fact in facts]
    assert names.count("prefill.chunk") == 3
    assert names.count("prefill.seal") == 3
    assert {"prefill.job", "prefill.queue", "prefill.first_token"} <= set(names)
    assert all(fact.start_s <= fact.end_s for fact in facts)


def _gone(answer: object) -> tuple[object, ...]:
    assert isinstance(answer, LeasesRenewed)
    return answer.gone
