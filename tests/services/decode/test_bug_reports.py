"""Public incidents of others, each as a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.decode.core import actions as do
from services.decode.core import events as on
from shared.errors import Code
from shared.ids import Attempt, RequestId
from shared.wire.requests import Accepted, Ended, LeaseKey

from .prefill_side import BLOCK, ME, undisturbed
from .rig import Rig, job, rules


@pytest.mark.parametrize("length", [20, 22])
def test_br_008_a_full_local_hit_pulls_nothing_but_the_partial_page_and_finishes(
    length: int,
) -> None:
    rig = Rig()
    rig.handoff(job(tokens=length))
    before = rig.pulled_pages
    again = job("r2", tokens=length)
    rig.handoff(again)
    rig.finished(again)
    assert rig.pulled_pages - before == (1 if length % BLOCK else 0)
    rig.at_rest()


def test_br_037_abort_during_the_pull_keeps_its_pages_until_the_read_is_over() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    rig.announce(*rig.prefill.compute(wanted, 8)[:1])
    pull = rig.take(do.Pull)
    assert isinstance(pull, do.Pull)
    assert rig.cancel() == Ended(wanted.request, wanted.attempt)
    counts = rig.cache.counts()
    assert (counts.referenced, counts.quarantined) == (0, 2)
    # The pages must not be granted again while bytes may land in them.
    other = job("r2", tokens=100, prefill=None)
    rig.submit(other)
    rig.land(pull)
    rig.run()
    rig.finished(other)
    rig.send(on.PullEnded(pull.pull, None))
    rig.run()
    rig.at_rest()
    assert rig.prefill.released == [(LeaseKey(wanted.request, wanted.attempt), "ended")]


def test_br_037_a_read_that_never_settles_keeps_its_pages_out_for_good() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    rig.announce(*rig.prefill.compute(wanted, 8)[:1])
    pull = rig.take(do.Pull)
    assert isinstance(pull, do.Pull)
    rig.cancel()
    rig.send(on.PullEnded(pull.pull, Code.TRANSFER_FAILED, settled=False))
    rig.run()
    rig.at_rest(unsettled=2)


def test_br_038_prefill_dies_during_the_transfer_and_decode_computes_the_rest() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 8)
    rig.announce(ready[0])
    rig.run()
    rig.announce(ready[1])
    rig.prefill_alive = False
    rig.send(on.PeerLost(ME.worker, "prefill", ME.epoch))
    rig.run()
    rig.finished(wanted)
    # Blocks 0 and 1 were verified and stay; the first token came from here.
    assert rig.machine.counts["recomputed_blocks"] == 4
    rig.at_rest()


def test_br_038_too_much_lost_fails_the_attempt_in_words() -> None:
    rig = Rig(limits=rules(recompute_tokens=8))
    wanted = job()
    rig.submit(wanted)
    rig.send(on.PeerLost(ME.worker, "prefill", ME.epoch))
    assert rig.logs[wanted.request].failed is Code.WORKER_LOST
    rig.at_rest()


@pytest.mark.parametrize("length", [20, 21])
def test_br_038_the_first_token_was_lost_with_prefill_and_decode_draws_the_same(
    length: int,
) -> None:
    rig = Rig()
    wanted = job(tokens=length, temperature=0.9)
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 8)
    rig.announce(*ready[:-1])
    rig.announce(replace(ready[-1], first_token=None))
    rig.run()
    assert not rig.logs[wanted.request].tokens
    rig.prefill_failed()
    rig.run()
    rig.finished(wanted)
    assert rig.machine.counts["recomputed_blocks"] == 1
    rig.at_rest()


def test_br_039_ends_of_unknown_or_finished_transfers_are_counted_and_ignored() -> None:
    rig = Rig()
    rig.send(on.PullEnded(99, None))
    rig.send(on.Verified(99, (1, 2)))
    rig.send(on.Checksummed(99, ()))
    rig.send(on.StepEnded(99, ()))
    rig.send(on.StepFailed(99, "x"))
    rig.send(on.ReleaseAcknowledged(LeaseKey(RequestId("nobody"), Attempt(1))))
    assert rig.machine.counts["ignored"] == 6
    wanted = job()
    rig.submit(wanted)
    rig.announce(*rig.prefill.compute(wanted, 100))
    pull = rig.take(do.Pull)
    assert isinstance(pull, do.Pull)
    rig.end_pull(pull)
    rig.send(on.PullEnded(pull.pull, Code.TRANSFER_FAILED))
    rig.run()
    rig.send(on.PullEnded(pull.pull, None))
    rig.send(on.Verified(pull.pull, ()))
    assert rig.machine.counts["ignored"] == 9
    assert rig.logs[wanted.request].finish == "length"


def test_br_041_no_room_at_the_moment_of_commit_keeps_what_was_received() -> None:
    rig = Rig(pages=13, limits=rules(forecast=False))
    first = job("r1", tokens=21, max_tokens=12)
    second = job("r2", tokens=[9, *range(15)], max_tokens=20)
    rig.submit(first)
    rig.submit(second)
    for one in (first, second):
        ready = rig.prefill.compute(one, 100)
        rig.first_token(one, ready)
        rig.announce(*ready)
    rig.run()
    for one in (first, second):
        rig.finished(one)
    assert rig.machine.counts["preemptions"] >= 1
    rig.at_rest()


def test_br_042_many_cancels_during_pulls_leave_nothing_behind() -> None:
    rig = Rig(pages=24)
    for number in range(60):
        wanted = job(f"r{number}", tokens=[number, *range(30)])
        assert isinstance(rig.submit(wanted), Accepted)
        rig.announce(*rig.prefill.compute(wanted, 8))
        if number % 3:
            rig.happen(rig.work.pop(0))
        rig.cancel(f"r{number}")
        rig.run()
        rig.at_rest()


def test_br_043_a_pool_too_small_for_the_batch_still_ends_every_request() -> None:
    rig = Rig(pages=16, limits=rules(reserve_wait_s=1e9))
    jobs = [job(f"r{n}", tokens=[n, *range(12)], max_tokens=20, prefill=None) for n in range(6)]
    for one in jobs:
        rig.submit(one)
    rig.run()
    for one in jobs:
        rig.finished(one)
    rig.at_rest()


def test_br_050_the_first_token_appears_once() -> None:
    rig = Rig()
    wanted = job()
    rig.handoff(wanted)
    emitted = [entry.index for chunk in rig.chunks for entry in chunk.entries]
    assert emitted == list(range(1, 9))
    rig.finished(wanted)


@pytest.mark.parametrize("max_tokens", [1, 2])
@pytest.mark.parametrize("prefill", [None, ME])
def test_br_051_length_applies_to_the_token_that_was_handed_over(
    max_tokens: int, prefill: object
) -> None:
    rig = Rig()
    wanted = job(max_tokens=max_tokens, prefill=ME if prefill else None)
    if prefill:
        rig.handoff(wanted)
    else:
        rig.submit(wanted)
        rig.run()
    rig.finished(wanted)
    assert len(rig.logs[wanted.request].tokens) == max_tokens
    rig.at_rest()


def test_br_051_a_stop_token_handed_over_ends_the_request_without_a_pull() -> None:
    expected, _ = undisturbed(job())
    rig = Rig()
    wanted = job(stop=(expected[0],))
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 100)
    rig.first_token(wanted, ready)
    rig.announce(*ready)
    rig.run()
    rig.finished(wanted)
    assert rig.pulled_pages == 0
    assert not rig.chunks
    rig.at_rest()


def test_br_054_no_entry_is_empty_and_nothing_follows_the_end() -> None:
    rig = Rig()
    for number in range(8):
        rig.handoff(job(f"r{number}", tokens=[number, *range(17)]))
    entries = [entry for chunk in rig.chunks for entry in chunk.entries]
    assert all(entry.token_ids for entry in entries)
    for number in range(8):
        own = [entry for entry in entries if entry.request == f"r{number}"]
        assert [entry.finish for entry in own] == [None] * 7 + ["length"]
