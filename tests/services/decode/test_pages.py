"""Pages are proved before use; leases live exactly as long as they are needed."""

from __future__ import annotations

from dataclasses import replace

from services.decode.core import actions as do
from services.decode.core import events as on
from services.decode.core.report import load
from shared.errors import Code
from shared.wire.requests import LeaseKey
from shared.wire.workers import CostModel, Reading

from .rig import BLOCK, Rig, flip, job, rules


def test_a_flipped_bit_is_fetched_once_more() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 100)
    rig.first_token(wanted, ready)
    rig.announce(*ready)
    pull = rig.take(do.Pull)
    assert isinstance(pull, do.Pull)
    rig.end_pull(pull, flip)
    rig.run()
    rig.finished(wanted)
    assert rig.machine.counts["checksum_failures"] == 6
    assert rig.machine.counts["recomputed_blocks"] == 0


def test_a_block_that_fails_twice_is_computed_here_and_the_later_pages_stay() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 8)
    rig.first_token(wanted, ready)
    rig.announce(ready[0], ready[2])
    rig.run()
    rig.announce(ready[1])
    for _ in range(2):
        pull = rig.take(do.Pull)
        assert isinstance(pull, do.Pull)
        rig.end_pull(pull, flip)
        rig.happen(rig.take(do.Verify))
    rig.run()
    rig.finished(wanted)
    assert rig.machine.counts["recomputed_blocks"] == 2
    assert rig.prefill.released[0][1] == "recompute"
    rig.at_rest()


def test_the_scheduler_is_told_which_pages_are_still_to_come() -> None:
    """From the acceptance on, before any is announced, until the last is proven."""
    rig, cost = Rig(), CostModel(1e-3, 1e-4, 0.0, 1e-3, 1e-4)
    wanted = job()
    pages = -(-len(wanted.tokens) // BLOCK)
    assert load(rig.machine, cost).reading == ()
    rig.submit(wanted)
    assert load(rig.machine, cost).reading == (Reading(rig.prefill.me.worker, pages),)
    ready = rig.prefill.compute(wanted, 8)
    rig.first_token(wanted, ready)
    rig.announce(ready[0])
    rig.run()
    come = len(ready[0].pages)
    assert 0 < come < pages
    assert load(rig.machine, cost).reading == (Reading(rig.prefill.me.worker, pages - come),)
    rig.announce(*ready[1:])
    rig.run()
    rig.finished(wanted)
    assert load(rig.machine, cost).reading == ()


def test_who_waits_to_be_let_in_counts_with_all_its_pages() -> None:
    rig, cost = Rig(limits=rules(max_sequences=1)), CostModel(1e-3, 1e-4, 0.0, 1e-3, 1e-4)
    first, second = job("r1"), job("r2", tokens=[3] * 21)
    rig.submit(first)
    rig.submit(second)
    assert len(rig.machine.admission.waiting) == 1
    told = load(rig.machine, cost).reading
    assert [one.pages for one in told] == [-(-len(one.tokens) // BLOCK) for one in (first, second)]


def test_a_page_with_another_name_or_length_is_never_pulled() -> None:
    rig = Rig()
    wanted = job()
    foreign = rig.prefill.compute(job("other", tokens=[1] * 21), 100)[0]
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 100)[0]
    rig.first_token(wanted, [ready])
    mixed = (foreign.pages[0], *ready.pages[1:])
    rig.announce(replace(ready, pages=mixed))
    rig.run()
    rig.finished(wanted)
    assert rig.machine.counts["pages_implausible"] == 1
    assert rig.pulled_pages == 5


def test_an_unsettled_read_gives_its_position_another_page() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 100)
    rig.first_token(wanted, ready)
    rig.announce(*ready)
    torn = rig.take(do.Pull)
    assert isinstance(torn, do.Pull)
    rig.send(on.PullEnded(torn.pull, Code.TRANSFER_FAILED, settled=False))
    again = rig.work[0]
    assert isinstance(again, do.Pull)
    old = {read.target for read in torn.reads}
    assert not old & {read.target for read in again.reads}
    rig.happen(rig.work.pop(0))
    rig.land(torn, flip)
    rig.run()
    rig.finished(wanted)
    rig.at_rest(unsettled=6)


def test_another_prompt_page_count_means_another_layout() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 100)[0]
    rig.announce(replace(ready, prompt_pages=3))
    rig.run()
    rig.finished(wanted)
    assert rig.pulled_pages == 0


def test_leases_are_renewed_per_peer_from_acceptance_to_commit() -> None:
    rig = Rig()
    first, second = job("r1"), job("r2", tokens=9)
    rig.submit(first)
    rig.submit(second)
    rig.tick()
    rig.tick(1.0)
    keys = (LeaseKey(first.request, first.attempt), LeaseKey(second.request, second.attempt))
    assert [renewal.leases for renewal in rig.renewals] == [keys]
    ready = rig.prefill.compute(first, 100)
    rig.work.clear()
    rig.announce(*ready)
    rig.run()
    rig.tick(5.0)
    assert [renewal.leases for renewal in rig.renewals] == [keys, keys[1:]]


def test_gone_before_the_first_announcement_is_patience_then_loss() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    for _ in range(6):
        rig.tick(5.0)
        rig.run()
    assert wanted.request in rig.machine.desk.sequences
    rig.tick(5.0)
    rig.run()
    rig.finished(wanted)
    rig.at_rest()


def test_gone_after_an_announcement_is_loss_at_once() -> None:
    rig = Rig()
    wanted = job()
    rig.submit(wanted)
    ready = rig.prefill.compute(wanted, 8)
    rig.announce(ready[0])
    rig.run()
    rig.prefill.leases.clear()
    rig.tick(5.0)
    rig.run()
    rig.finished(wanted)
    assert rig.machine.counts["recomputed_blocks"] == 4


def test_a_release_is_repeated_until_acknowledged_or_lapsed() -> None:
    rig = Rig()
    rig.prefill_alive = False
    rig.submit(job())
    rig.announce(*rig.prefill.compute(job(), 8)[:1])
    rig.cancel()
    sent = 0
    for _ in range(60):
        rig.tick(0.5)
        sent += sum(isinstance(action, do.Release) for action in rig.work)
        rig.run()
    assert 4 <= sent <= 10
    rig.tick(30.0)
    rig.run()
    rig.at_rest()


def test_a_prefill_that_never_answers_is_lost_when_its_lease_would_be() -> None:
    rig = Rig()
    rig.prefill_alive = False
    wanted = job()
    rig.submit(wanted)
    rig.tick(30.0)
    assert not rig.machine.counts["recomputed_blocks"]
    rig.tick(1.0)
    rig.run()
    rig.finished(wanted)
    rig.at_rest()
