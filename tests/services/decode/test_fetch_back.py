"""Giving way with a pool: blocks are offered in time, and come back when that is cheaper."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from services.decode.core import actions as do
from services.decode.core import events as on
from services.decode.core.sequences import Stage
from shared.costs import LinkCosts, WorkCosts
from shared.errors import Code
from shared.wire.requests import DecodeJob

from .pool_side import POOL
from .rig import Rig, flip, job, rules

DEAR = WorkCosts(0.1, 0.1, 0.0, 0.1, 0.1)
"""Computing is so slow that any fetch pays."""
CHEAP = WorkCosts(0.0, 1e-9, 0.0, 0.0, 0.0)


def crowd(count: int = 3, *, temperature: float = 0.0) -> list[DecodeJob]:
    return [
        job(
            f"r{n}",
            tokens=[n, *range(21)],
            max_tokens=40,
            prefill=None,
            kvpool=POOL,
            temperature=temperature,
        )
        for n in range(count)
    ]


def tight(**changes: Any) -> Rig:
    """Room for the prompts and some of the answers."""
    fields: dict[str, Any] = {"forecast": False, "costs": DEAR, "step_tokens": 64, **changes}
    return Rig(pages=28, limits=rules(**fields))


def until_fetching(rig: Rig, jobs: list[DecodeJob]) -> do.LookUp:
    """Run until somebody asks the pool; that question."""
    for one in jobs:
        rig.submit(one)
    for _ in range(5_000):
        action = rig.work.pop(0)
        if isinstance(action, do.LookUp):
            return action
        rig.happen(action)
    raise AssertionError("nobody asked the pool")


def end(rig: Rig, jobs: list[DecodeJob]) -> None:
    rig.run()
    for one in jobs:
        rig.finished(one)
    rig.at_rest()
    assert not rig.machine.offering.open


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_blocks_are_offered_before_they_are_needed_and_come_back(temperature: float) -> None:
    rig, jobs = tight(), crowd(temperature=temperature)
    until = until_fetching(rig, jobs)
    rig.work.insert(0, until)
    end(rig, jobs)
    counts = rig.machine.counts
    assert counts["preemptions"] >= 1
    assert counts["blocks_kept"] >= 4 and counts["pool_blocks"] >= 1
    assert not rig.pool.tickets, "every lease at the pool was given back"
    assert "decode.fetch" in {span.name for span in rig.traced}


def test_computing_again_is_chosen_where_it_is_cheaper() -> None:
    for costs, link in ((CHEAP, LinkCosts(0.005, 1e9)), (DEAR, LinkCosts(1e6, 1.0))):
        rig, jobs = tight(costs=costs, pool_link=link), crowd()
        for one in jobs:
            rig.submit(one)
        end(rig, jobs)
        assert rig.machine.counts["preemptions"] >= 1
        assert rig.pool.asked == 0


def test_a_pool_that_was_slow_is_asked_again_after_a_minute() -> None:
    """Who is never asked is never measured: such a belief has to end by itself."""
    for later_s, asked in ((1.0, False), (61.0, True)):
        rig, jobs = tight(), crowd()
        for _ in range(20):
            rig.machine.fetching.speed.add(1, 1e6, rig.now)
        rig.tick(later_s)
        for one in jobs:
            rig.submit(one)
        end(rig, jobs)
        assert rig.machine.counts["preemptions"] >= 1
        assert (rig.pool.asked > 0) is asked


def test_a_block_that_the_pool_spoilt_is_computed() -> None:
    rig, jobs = tight(), crowd()
    question = until_fetching(rig, jobs)
    rig.pool.spoil(flip, [question.lookup.blocks[-1]])
    rig.happen(question)
    end(rig, jobs)
    assert rig.pool.damaged == [question.lookup.blocks[-1]]
    assert rig.machine.counts["checksum_failures"] == 1


def test_a_pool_that_died_costs_time_only() -> None:
    rig, jobs = tight(), crowd()
    question = until_fetching(rig, jobs)
    rig.pool.alive = False
    rig.happen(question)
    end(rig, jobs)
    assert rig.machine.counts["pool_misses"] == 1


@pytest.mark.parametrize("settled", [True, False])
def test_a_read_that_failed_is_computed_and_never_lands_in_given_pages(settled: bool) -> None:
    rig, jobs = tight(), crowd()
    rig.happen(until_fetching(rig, jobs))
    pull = rig.take(do.Pull)
    assert isinstance(pull, do.Pull)
    rig.send(on.PullEnded(pull.pull, Code.TRANSFER_FAILED, settled))
    lost = 0 if settled else len(pull.reads)
    rig.run()
    if not settled:
        rig.land(pull, flip)
    for one in jobs:
        rig.finished(one)
    rig.at_rest(unsettled=lost)


def test_an_attempt_that_ends_while_it_fetches_leaves_nothing() -> None:
    for phase in ("asking", "reading", "proving"):
        rig, jobs = tight(), crowd()
        question = until_fetching(rig, jobs)
        action: do.Action = question
        if phase != "asking":
            rig.happen(question)
            action = rig.take(do.Pull)
        if phase == "proving":
            rig.happen(action)
            action = rig.take(do.Verify)
        rig.cancel(question.request)
        rig.happen(action)
        end(rig, [one for one in jobs if one.request != question.request])
        assert phase == "proving" or not rig.pool.tickets


def test_late_and_repeated_answers_change_nothing() -> None:
    rig, jobs = tight(), crowd()
    question = until_fetching(rig, jobs)
    rig.happen(question)
    rig.happen(question)
    before = rig.machine.counts["ignored"]
    rig.send(on.OfferEnded(question.request, question.attempt, 5))
    rig.send(on.PoolAnswered(99, question.request, question.attempt, None))
    assert rig.machine.counts["ignored"] == before + 2
    rig.run()
    for one in jobs:
        rig.finished(one)


def test_giving_way_does_not_wait_for_an_offer() -> None:
    """The pool never answers: its leases end when the pages are needed."""
    rig, jobs = tight(), crowd()
    for one in jobs:
        rig.submit(one)
    held = []
    for _ in range(5_000):
        if not rig.work:
            break
        action = rig.work.pop(0)
        if isinstance(action, do.Offer):
            held.append(action)
        else:
            rig.happen(action)
    for one in jobs:
        rig.finished(one)
    assert held and rig.machine.counts["preemptions"] >= 1
    for offer in held:
        rig.happen(offer)
    assert all(not rig.pool.kept for _ in held), "a withdrawn offer cannot be read"
    rig.tick(100.0)
    rig.at_rest()


def test_offers_end_when_the_worker_drains() -> None:
    rig, jobs = tight(), crowd()
    for one in jobs:
        rig.submit(one)
    while not rig.machine.offering.open:
        rig.happen(rig.work.pop(0))
    rig.send(on.DrainStarted())
    assert not rig.machine.offering.open
    end(rig, jobs)


def test_without_a_pool_nothing_is_offered() -> None:
    rig = tight()
    jobs = [replace(one, kvpool=None) for one in crowd()]
    for one in jobs:
        rig.submit(one)
    end(rig, jobs)
    assert rig.machine.counts["preemptions"] >= 1 and not rig.pool.kept


@pytest.mark.parametrize("seed", range(8))
def test_preempted_sequences_give_the_same_tokens_whatever_the_memory(seed: int) -> None:
    """Tiny memory, mixed priorities, a pool that comes and goes: only the time differs."""
    chance = random.Random(seed)
    rig = Rig(
        pages=chance.choice([16, 22, 30]),
        limits=rules(
            forecast=False,
            costs=chance.choice([DEAR, CHEAP]),
            step_tokens=chance.choice([8, 40]),
            alone_tokens=chance.choice([8, 40]),
            reserve_wait_s=1e9,
        ),
    )
    jobs = [
        job(
            f"r{n}",
            tokens=[chance.randrange(5) for _ in range(chance.randint(3, 20))],
            max_tokens=chance.randint(8, 36),
            prefill=None,
            kvpool=POOL,
            priority=chance.choice([-20, 0, 20]),
            temperature=chance.choice([0.0, 1.0]),
        )
        for n in range(8)
    ]
    for one in jobs:
        rig.submit(one)
    for _ in range(20_000):
        if not rig.work:
            break
        if chance.random() < 0.05:
            rig.pool.alive = not rig.pool.alive
        rig.happen(rig.work.pop(chance.randrange(min(3, len(rig.work)))))
        rig.tick(0.01)
    for one in jobs:
        rig.finished(one)
    stages = {sequence.stage for sequence in rig.machine.desk.sequences.values()}
    assert not stages - {Stage.JOINED}
    rig.at_rest()


def test_a_page_that_the_pool_reads_stays_as_it_is_until_the_read_ends() -> None:
    """The offer is withdrawn in the middle of a read: its pages come back only afterwards."""
    rig, jobs = tight(), crowd()
    for one in jobs:
        rig.submit(one)
    while not rig.machine.offering.open:
        rig.happen(rig.work.pop(0))
    offer = rig.take(do.Offer)
    assert isinstance(offer, do.Offer)
    wanted = [(ref.page, ref.generation) for ref in offer.offer.pages]
    read = rig.cache.open_read(offer.offer.ticket, wanted, rig.now)
    assert read is not None
    sums = [ref.checksum for ref in offer.offer.pages]
    rig.run()
    assert rig.machine.counts["preemptions"] >= 1
    pages = [ref.page for ref in offer.offer.pages]
    assert list(rig.engine.checksums(pages)) == sums
    rig.send(on.ReadEnded(read))
    rig.send(on.OfferEnded(offer.request, offer.attempt, 0))
    end(rig, jobs)
