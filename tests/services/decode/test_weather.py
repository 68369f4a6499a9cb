"""Late, repeated, unknown, too much: counted, answered, nothing held."""

from __future__ import annotations

from dataclasses import replace

from services.decode.core import actions as do
from shared.errors import Code
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire.requests import Accepted, Ended, TokenEntry

from .prefill_side import ME, undisturbed
from .rig import Rig, job, refused, rules


def test_late_unknown_and_fenced_announcements_are_refused_as_stale() -> None:
    rig = Rig()
    wanted = job()
    ready = rig.prefill.compute(wanted, 100)[0]
    assert refused(rig.announce(ready)[0]) == Code.STALE
    rig.submit(wanted)
    older = replace(ME, epoch=Epoch(2))
    assert refused(rig.announce(replace(ready, owner=older))[0]) == "stale"
    rig.cancel()
    assert refused(rig.announce(ready)[0]) == Code.STALE
    assert refused(rig.prefill_failed()) == Code.STALE
    assert rig.machine.counts["fenced_attempt"] == 3
    rig.at_rest()


def test_a_job_twice_is_one_reservation_and_an_old_attempt_is_stale() -> None:
    rig = Rig()
    wanted = job(attempt=2)
    rig.submit(wanted)
    held = rig.cache.counts().referenced
    assert isinstance(rig.submit(wanted), Accepted)
    assert rig.cache.counts().referenced == held
    assert refused(rig.submit(job(attempt=1))) == Code.STALE
    newer = job(attempt=3, prefill=None)
    assert isinstance(rig.submit(newer), Accepted)
    rig.run()
    rig.finished(newer)
    assert isinstance(rig.submit(newer), Accepted)
    assert refused(rig.submit(wanted)) == Code.STALE
    rig.at_rest()


def test_a_cancel_that_overtakes_its_job_wins() -> None:
    rig = Rig()
    assert rig.cancel() == Ended(RequestId("r1"), Attempt(1))
    assert refused(rig.submit(job())) == Code.STALE
    assert isinstance(rig.submit(job(attempt=2, prefill=None)), Accepted)
    assert rig.cancel(attempt=1) == Ended(RequestId("r1"), Attempt(1))
    rig.run()
    rig.finished(job(attempt=2, prefill=None))


def test_a_cancel_during_a_step_keeps_the_pages_until_the_step_is_over() -> None:
    rig = Rig(pages=8)
    rig.submit(job(tokens=20, prefill=None))
    step = rig.take(do.RunStep)
    rig.cancel()
    assert rig.cache.counts().referenced == 6
    rig.happen(step)
    rig.run()
    rig.at_rest()
    assert not rig.chunks


def test_the_token_log_answers_while_running_and_after_the_end() -> None:
    rig = Rig(limits=rules(log_s=60.0))
    wanted = job(prefill=None)
    rig.submit(wanted)
    expected, _ = undisturbed(wanted)
    alive = rig.resend(index=0)
    assert isinstance(alive, TokenEntry)
    assert (alive.token_ids, alive.finish, alive.cached_tokens) == ((), None, None)
    rig.run()
    late = rig.resend(index=3)
    assert isinstance(late, TokenEntry)
    assert (list(late.token_ids), late.finish) == (expected[3:], "length")
    whole = rig.resend(index=0)
    assert isinstance(whole, TokenEntry)
    assert (list(whole.token_ids), whole.cached_tokens) == (expected, 0)
    assert refused(rig.resend(attempt=2)) == Code.UNKNOWN_REQUEST
    rig.tick(61.0)
    assert refused(rig.resend()) == Code.UNKNOWN_REQUEST


def test_the_first_token_of_prefill_is_in_the_log_too() -> None:
    rig = Rig()
    wanted = job()
    rig.handoff(wanted)
    entry = rig.resend()
    assert isinstance(entry, TokenEntry)
    assert list(entry.token_ids) == undisturbed(wanted)[0]


def test_what_can_never_run_is_refused_before_anything_is_held() -> None:
    rig = Rig(pages=8)
    assert refused(rig.submit(job("a", tokens=30, max_tokens=8))) == Code.KV_PAGES_EXHAUSTED
    assert refused(rig.submit(job("b", tokens=[]))) == Code.INVALID_PARAMETER
    assert refused(rig.submit(job("c", tokens=[512]))) == Code.INVALID_PARAMETER
    assert refused(rig.submit(job("d", max_tokens=0))) == Code.INVALID_PARAMETER
    assert refused(rig.submit(job("e", max_tokens=9000))) == Code.CONTEXT_LENGTH_EXCEEDED
    assert refused(rig.submit(job("f", deadline_s=0.0))) == Code.DEADLINE_EXCEEDED
    rig.at_rest()


def test_a_job_waits_a_little_for_pages_then_is_refused() -> None:
    rig = Rig(pages=10, limits=rules(reserve_wait_s=2.0))
    rig.submit(job("r1", tokens=28))
    assert rig.submit(job("r2", tokens=20)) is None
    assert rig.submit(job("r2", tokens=20)) is None
    rig.tick(1.0)
    rig.cancel("r1")
    assert [rig.replies.get(n) for n in (2, 3)] == [Accepted(WorkerId("decode-0"), Epoch(7))] * 2
    assert rig.submit(job("r3", tokens=28)) is None
    rig.tick(2.0)
    assert refused(rig.replies.get(5)) == Code.KV_PAGES_EXHAUSTED
    rig.cancel("r2")
    assert refused(rig.submit(job("r3", tokens=28))) == Code.STALE, "nobody waits for it any more"
    assert isinstance(rig.submit(job("r3", tokens=28, attempt=2)), Accepted)


def test_waiting_is_bounded_in_number() -> None:
    rig = Rig(limits=rules(max_sequences=1, queue_limit=1))
    rig.submit(job("r1"))
    assert rig.submit(job("r2")) is None
    assert refused(rig.submit(job("r3"))) == Code.QUEUE_FULL
    assert rig.cancel("r2") == Ended(RequestId("r2"), Attempt(1))
    assert refused(rig.replies.get(2)) == Code.STALE


def test_preemption_is_bounded_and_changes_no_token() -> None:
    rig = Rig(pages=14, limits=rules(step_tokens=8, forecast=False))
    jobs = [job(f"r{n}", tokens=[n, *range(6)], max_tokens=30, prefill=None) for n in range(4)]
    for one in jobs:
        rig.submit(one)
    seen: dict[str, int] = {}
    while rig.work:
        for sequence in rig.machine.desk.sequences.values():
            seen[sequence.job.request] = sequence.preemptions
        rig.happen(rig.work.pop(0))
        rig.tick(0.001)
    for one in jobs:
        rig.finished(one)
    assert sum(seen.values()) >= 1 and max(seen.values()) <= 2
    rig.at_rest()


def test_a_late_copy_of_a_job_is_not_taken_in_by_the_next_incarnation() -> None:
    rig = Rig()
    late = job(epoch=Epoch(6))
    assert refused(rig.submit(late)) == "worker_lost"
    assert (rig.machine.counts["fenced_epoch"], rig.machine.idle) == (1, True)
    assert isinstance(rig.submit(job(epoch=rig.limits.epoch)), Accepted)
