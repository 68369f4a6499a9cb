"""Tries after failures: how many the cluster allows itself, and which requests get none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.events import Tick
from services.scheduler.core.recovery import (
    PROGRESS_TOKENS,
    PoisonLedger,
    RetryBudget,
    RetrySettings,
    Verdict,
)
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire.requests import Placement, PlacementEnded, Refused, WorkerRef
from tests.services.scheduler.builders import answer, ask, beat, machine, placed

PROOF_S = 0.5
"""As short as the wait for reports: only the tests of proof need more."""


def ref(name: str, epoch: int = 1) -> WorkerRef:
    return WorkerRef(WorkerId(name), Epoch(epoch), f"plane:{name}")


def died(
    signature: str, worker: str, *, epoch: int = 1, emitted: int = 0, outcome: str = "worker_lost"
) -> PlacementEnded:
    """An attempt of the request `r-<signature>` ended with the death of a worker."""
    gone = (ref(worker, epoch),)
    name = RequestId(f"r-{signature}")
    return PlacementEnded(name, Attempt(1), outcome, gone, signature, gone, emitted)


# -- the budget ------------------------------------------------------------------------------


def test_a_small_cluster_may_try_everything_again_once() -> None:
    budget = RetryBudget(RetrySettings(share=0.2, floor=64))
    for _ in range(64):
        assert budget.allows(0, 1.0)
        budget.again(1.0)
    assert not budget.allows(0, 1.5)
    assert budget.allows(0, 11.5), "the window has passed"


def test_a_large_cluster_may_try_a_fifth_again() -> None:
    budget = RetryBudget(RetrySettings(share=0.2, floor=10))
    for _ in range(400):
        budget.first(0.0)
    granted = 0
    while budget.allows(600, 1.0):
        budget.again(1.0)
        granted += 1
    assert granted == 200


def test_eight_streams_of_a_killed_worker_are_all_placed_again() -> None:
    core = machine()
    for name in ("prefill-0", "decode-0", "decode-1"):
        core.handle(beat(name), 0.0)
    for number in range(8):
        placed(core, ask(f"r{number}", tokens=10), 0.1)
    for number in range(8):
        again = ask(f"r{number}", attempt=2, failures=1, excluded=(ref("decode-0"),))
        assert placed(core, again, 3.0).decode.worker == "decode-1"
    assert core.retries.retries(3.0) == 8


def test_a_storm_of_retries_is_held_to_its_share() -> None:
    """A thousand requests fail again and again, as fast as they may."""
    core = machine(retries=RetrySettings(share=0.2, floor=64))
    for name in ("prefill-0", "decode-0"):
        core.handle(beat(name, pages_free=10**6, pages_total=10**6), 0.0)
    for number in range(1000):
        placed(core, ask(f"r{number}", tokens=10), 0.1)
    granted, refused, now = 0, [], 0.2
    while now < 9.0:
        for number in range(0, 1000, 7):
            attempt = 2 + int(now * 10)
            reply = answer(core, ask(f"r{number}", attempt=attempt, failures=1), now)
            if isinstance(reply, Placement):
                granted += 1
            else:
                refused.append(reply)
        now += 0.4
    assert granted == 200
    assert {(r.code, r.retry_after_s) for r in refused} == {("queue_full", 1.0)}
    assert core.counts["retries_refused"] == len(refused)
    assert isinstance(placed(core, ask("new"), now), Placement), "first tries are not held up"


# -- poison ------------------------------------------------------------------------------------


def test_a_request_that_killed_two_workers_is_kept_out_for_a_while() -> None:
    core = machine()
    for name in ("prefill-0", "prefill-1", "prefill-2", "decode-0"):
        core.handle(beat(name), 0.0)
    core.handle(died("s", "prefill-0"), 1.0)
    assert placed(core, ask("r-s", attempt=2, failures=1, signature="s"), 1.1)
    core.handle(died("s", "prefill-1"), 2.0)
    early = answer(core, ask("r-s", attempt=3, failures=2, signature="s"), 2.1)
    assert isinstance(early, Refused) and (early.code, early.retry_after_s) == ("queue_full", 0.25)
    for name in ("prefill-0", "prefill-1"):
        core.handle(beat(name, epoch=2), 2.5)
    for request, attempt in (("r-s", 3), ("another", 1)):
        reply = answer(core, ask(request, attempt=attempt, failures=0, signature="s"), 2.6)
        assert isinstance(reply, Refused) and reply.code == "poison_request"
        assert reply.retry_after_s is None
    assert core.poison.kept_out == 1
    assert placed(core, ask("healthy", signature="h"), 2.7)
    core.handle(Tick(), 303.0)
    for sequence, name in enumerate(("prefill-2", "decode-0"), start=2):
        core.handle(beat(name, sequence=sequence), 303.1)
    assert placed(core, ask("later", signature="s"), 303.2)


def test_the_same_death_reported_twice_counts_once() -> None:
    ledger = PoisonLedger(PROOF_S)
    for _ in range(3):
        ledger.ended(died("s", "decode-0"), 1.0)
    assert ledger.judge("s", 5.0) is Verdict.FREE
    ledger.ended(died("s", "decode-0", epoch=2), 6.0)
    assert ledger.judge("s", 7.0) is Verdict.POISON, "two incarnations of one worker are two"


def test_progress_between_two_deaths_clears_a_request() -> None:
    ledger = PoisonLedger(PROOF_S)
    ledger.ended(died("s", "decode-0", emitted=500), 1.0)
    ledger.ended(died("s", "decode-1", emitted=PROGRESS_TOKENS + 1), 9.0)
    assert ledger.judge("s", 10.0) is Verdict.FREE
    ledger.ended(died("s", "decode-2", emitted=PROGRESS_TOKENS), 20.0)
    assert ledger.judge("s", 21.0) is Verdict.POISON, "what a crash may swallow is no progress"


def test_an_answer_clears_a_request() -> None:
    ledger = PoisonLedger(PROOF_S)
    ledger.ended(died("s", "decode-0"), 1.0)
    ledger.ended(PlacementEnded(RequestId("r"), Attempt(2), "finished", (), "s"), 2.0)
    ledger.ended(died("s", "decode-1"), 3.0)
    assert ledger.judge("s", 4.0) is Verdict.FREE


def test_companions_of_a_poison_are_tried_one_at_a_time_and_go_free() -> None:
    """Three were there both times. None is condemned on that: each is tried alone."""
    ledger = PoisonLedger(PROOF_S)
    for now, worker in ((1.0, "prefill-0"), (3.0, "prefill-1")):
        for signature in ("bad", "one", "two"):
            ledger.ended(died(signature, worker), now)
    assert {ledger.judge(name, 3.1) for name in ("bad", "one", "two")} == {Verdict.WAIT}
    assert ledger.judge("one", 3.6) is Verdict.FREE
    assert ledger.judge("bad", 3.7) is ledger.judge("two", 3.7) is Verdict.WAIT
    ledger.ended(PlacementEnded(RequestId("r-one"), Attempt(3), "finished", (), "one"), 4.0)
    assert ledger.judge("bad", 4.1) is Verdict.FREE
    ledger.ended(died("bad", "prefill-2"), 4.5)
    assert ledger.judge("bad", 5.1) is Verdict.POISON
    assert ledger.judge("two", 5.2) is Verdict.FREE, "its deaths are explained"
    assert ledger.kept_out == 1


def test_who_survives_a_trial_is_cleared() -> None:
    ledger = PoisonLedger(PROOF_S)
    for now, worker in ((1.0, "prefill-0"), (3.0, "prefill-1")):
        for signature in ("one", "two"):
            ledger.ended(died(signature, worker), now)
    assert ledger.judge("one", 4.0) is Verdict.FREE
    ledger.expire(9.1)
    assert ledger.judge("one", 9.2) is Verdict.FREE
    assert ledger.judge("two", 9.2) is Verdict.FREE, "nobody is condemned by elimination"
    ledger.expire(15.0)
    assert ledger.judge("two", 15.0) is Verdict.FREE


def test_nobody_is_judged_by_deaths_that_are_not_proven() -> None:
    ledger = PoisonLedger(3.0)
    for now, worker in ((1.0, "decode-0"), (2.0, "decode-1")):
        ledger.ended(died("s", worker), now)
    assert ledger.judge("s", 4.9) is Verdict.WAIT
    ledger.heard(WorkerId("decode-0"), Epoch(2))
    assert ledger.judge("s", 4.9) is Verdict.WAIT, "one of two"
    assert ledger.judge("s", 5.1) is Verdict.POISON, "nothing was heard for long enough"


def test_a_worker_that_lives_after_all_takes_its_death_back() -> None:
    """Healthy workers whose connections were cut again and again were given up as dead, and the
    stream that had been on two of them was refused as poison."""
    ledger = PoisonLedger(3.0)
    for now, worker in ((1.0, "decode-0"), (2.0, "decode-1")):
        ledger.ended(died("s", worker), now)
    ledger.heard(WorkerId("decode-1"), Epoch(1))
    assert ledger.judge("s", 9.0) is Verdict.FREE
    ledger.ended(died("s", "decode-1"), 10.0)
    ledger.heard(WorkerId("decode-1"), Epoch(2))
    assert ledger.judge("s", 13.1) is Verdict.POISON, "now it is dead"
    ledger.heard(WorkerId("decode-0"), Epoch(1))
    assert ledger.judge("s", 13.2) is Verdict.FREE, "even a verdict is taken back"
    assert ledger.kept_out == 0


def test_a_heartbeat_that_is_refused_proves_no_life() -> None:
    core = machine()
    for name in ("prefill-0", "decode-0", "decode-1", "decode-2"):
        core.handle(beat(name), 0.0)
    for now, worker in ((1.0, "decode-0"), (2.0, "decode-1")):
        core.handle(died("s", worker), now)
    core.handle(beat("decode-0", epoch=2), 2.1)
    core.handle(beat("decode-1", epoch=2), 2.2)
    core.handle(died("s", "decode-1", epoch=2), 2.3)
    senseless = replace(beat("decode-1", epoch=2, sequence=9), block_tokens=0)
    core.handle(senseless, 2.4)
    core.handle(beat("decode-0", sequence=9), 2.5)
    reply = answer(core, ask("r-s", attempt=4, failures=3, signature="s"), 2.9)
    assert isinstance(reply, Refused) and reply.code == "queue_full", "it waits for the proof"
    core.handle(beat("decode-2", sequence=2), 5.3)
    reply = answer(core, ask("r-s", attempt=5, failures=3, signature="s"), 5.4)
    assert isinstance(reply, Refused) and reply.code == "poison_request"


def test_a_death_during_a_trial_has_to_be_proven_too() -> None:
    ledger = PoisonLedger(3.0)
    for now, worker in ((1.0, "prefill-0"), (3.0, "prefill-1")):
        for signature in ("bad", "one"):
            ledger.ended(died(signature, worker), now)
    assert ledger.judge("one", 6.1) is Verdict.FREE, "its trial"
    ledger.ended(died("one", "prefill-2"), 6.5)
    assert ledger.judge("one", 7.1) is Verdict.WAIT
    ledger.heard(WorkerId("prefill-2"), Epoch(1))
    assert ledger.judge("one", 10.0) is Verdict.FREE, "tried again"
    ledger.ended(died("one", "prefill-3"), 10.5)
    assert ledger.judge("one", 13.6) is Verdict.POISON


@pytest.mark.parametrize("count", [10_000])
def test_the_ledger_is_bounded(count: int) -> None:
    ledger = PoisonLedger(PROOF_S)
    for number in range(count):
        ledger.ended(died(f"s{number}", "decode-0"), 1.0)
    assert len(ledger._suspects) <= 4096
    ledger.expire(400.0)
    assert not ledger._suspects
