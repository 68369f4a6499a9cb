"""The prefill machine: the pool, tokens again, failures, reads, late events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from services.prefill.core import events as on
from services.prefill.core.actions import (
    Lookup,
    Offer,
    ReleasePool,
    SendPages,
    Traced,
)
from shared.errors import Code
from shared.ids import Epoch, RequestId, WorkerId
from shared.kv.hashing import block_hashes
from shared.wire.requests import (
    ResendTokens,
    TokenEntry,
    WorkerRef,
)
from shared.wire.workers import Reading
from tests.services.prefill.rig import (
    IDENTITY,
    LEASE_S,
    LONG,
    POOL,
    Rig,
    code_of,
    expected_token,
    job,
    limits,
)


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


def test_the_scheduler_is_told_what_a_worker_has_still_to_read() -> None:
    """From the question on until the pages are there; a mate that waits for them adds nothing."""
    rig = _filled_pool()

    def told() -> tuple[Reading, ...]:
        return rig.machine.load(rig.clock.now()).reading

    assert told() == ()
    rig.start(job("b", LONG, pool=POOL))
    rig.start(job("c", LONG, pool=POOL))
    assert told() == (Reading(POOL.worker, 10),)
    rig.look_up()
    assert told() == (Reading(POOL.worker, 10),)
    rig.settle()
    assert told() == ()


def test_a_damaged_page_from_the_pool_is_computed_instead_and_the_pool_hears_of_it() -> None:
    rig = _filled_pool()
    rig.start(job("b", LONG, pool=POOL))
    rig.look_up()
    rig.pull(damage=True)
    rig.settle()
    entry = rig.first_tokens()[RequestId("b")]
    assert (entry.token_ids, entry.cached_tokens) == ((expected_token(LONG),), 0)
    assert rig.machine.counters["damaged_blocks"] == 10
    (told,) = rig.seen(ReleasePool)
    assert told.release.corrupted == tuple(list(rig.pool)[:10])


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


def test_siblings_share_one_fetch() -> None:
    """Three of one burst: the pool is asked once, and all have its blocks."""
    rig = _filled_pool()
    longer = (*LONG, *range(200, 210))
    for name, tokens in (("b", LONG), ("c", LONG), ("d", longer)):
        rig.start(job(name, tokens, pool=POOL))
    assert len(rig.lookups) == 1
    assert rig.machine.counters["fetches_shared"] == 2
    rig.look_up()
    rig.pull()
    rig.settle()
    tokens = rig.first_tokens()
    assert [tokens[RequestId(name)].cached_tokens for name in "bcd"] == [40, 40, 40]
    assert tokens[RequestId("c")].token_ids == (expected_token(LONG),)
    assert tokens[RequestId("d")].token_ids == (expected_token(longer),)
    assert rig.machine.counters["pool_blocks"] == 10
    assert [len(asked.lookup.blocks) for asked in rig.seen(Lookup)] == [10, 3], "d: what is left"


def test_a_sibling_of_a_cancelled_fetch_fetches_itself() -> None:
    rig = _filled_pool()
    rig.start(job("b", LONG, pool=POOL))
    rig.start(job("c", LONG, pool=POOL))
    rig.look_up()
    rig.cancel("b")
    assert len(rig.lookups) == 1, "c asks for itself"
    rig.settle()
    entry = rig.first_tokens()[RequestId("c")]
    assert (entry.token_ids, entry.cached_tokens) == ((expected_token(LONG),), 40)


def test_siblings_of_a_miss_do_not_ask_one_after_the_other() -> None:
    rig = Rig()
    for name in "bcd":
        rig.start(job(name, LONG, pool=POOL))
    rig.look_up()
    assert not rig.lookups
    rig.settle()
    assert len(rig.seen(Lookup)) == 1
    assert {e.token_ids for e in rig.emitted()} == {(expected_token(LONG),)}


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


def test_a_planned_copy_asks_whom_placement_chose_and_for_no_more_than_that() -> None:
    other = WorkerRef(WorkerId("kvpool-1"), Epoch(4), "plane-other")
    rig = _filled_pool()
    order = replace(job("b", LONG, pool=POOL), fetch_from=other, fetch_until=6)
    rig.start(order)
    (asked,) = rig.lookups
    assert asked.pool == other
    assert asked.lookup.blocks == block_hashes(replace(IDENTITY, namespace="tenant"), LONG)[:6]
    rig.settle()
    entry = rig.first_tokens()[RequestId("b")]
    assert (entry.token_ids, entry.cached_tokens) == ((expected_token(LONG),), 24)
    assert [offer for offer in rig.seen(Offer) if offer.pool == other] == [], "kept at its own pool"


@pytest.mark.parametrize("until", [-7, 0])
def test_a_copy_of_nothing_is_not_asked_for(until: int) -> None:
    rig = _filled_pool()
    rig.start(replace(job("b", LONG, pool=POOL), fetch_from=POOL, fetch_until=until))
    assert not rig.lookups
    rig.settle()
    assert rig.first_tokens()[RequestId("b")].cached_tokens == 0
