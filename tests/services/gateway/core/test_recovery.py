"""An attempt that cannot go on: failures, silence, an outage of the bus."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.events import Role, Silence
from shared.errors import Code
from shared.ids import Attempt, RequestId
from shared.wire.requests import (
    Accepted,
    DecodeJob,
    Refused,
    TokenEntry,
)
from tests.services.gateway.core.builders import (
    DECODE,
    DECODE_2,
    PREFILL,
    SAMPLING,
    Core,
    R,
    places,
    started,
)

NO_WORKER = Refused("no_worker", "nobody is ready", 1.0)


# -- another attempt -----------------------------------------------------------------------


def test_decode_dies_after_two_tokens_and_the_stream_goes_on() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    core.died(DECODE, "decode")
    (place,) = places(core)
    assert place.message.attempt == 2 and place.message.excluded == (DECODE,)
    assert (place.message.prompt_tokens, place.message.max_tokens) == (22, 6)
    assert core.got(act.ReportEnd)[0].message.failed == (DECODE,)
    core.run(2, decode=DECODE_2)
    job = core.all(act.SendJob)[-2].message
    assert isinstance(job, DecodeJob)
    assert job.tokens == (*range(20), 5, 6) and job.first_index == 2
    assert job.sampling.max_tokens == 6
    core.chunk(2, 77, attempt=1)
    core.chunk(2, 7, ref=PREFILL, attempt=2)
    core.chunk(3, 99, ref=DECODE_2, attempt=2, finish="stop")
    assert core.tokens == [5, 6, 7, 99]


def test_three_failed_attempts_are_enough() -> None:
    core = Core()
    core.open()
    for attempt in (1, 2, 3):
        core.run(attempt)
        core.failed(DECODE, "internal", attempt)
    (fail,) = core.got(act.Fail)
    assert fail.code is Code.ATTEMPTS_EXHAUSTED and core.machine.open_requests == 0


def test_an_attempt_that_got_far_was_not_in_vain() -> None:
    """A stream whose workers are lost again and again goes on as long as it gets on."""
    core = Core()
    core.open(sampling=replace(SAMPLING, max_tokens=500))
    for attempt in range(1, 7):
        first = 34 * (attempt - 1)
        core.run(attempt)
        for index in range(first, first + 34):
            ref = PREFILL if index == first else DECODE
            core.chunk(index, index, ref=ref, attempt=attempt)
        core.failed(DECODE, "internal", attempt)
        assert core.got(act.Place)[0].message.failures == 1
    assert core.tokens == list(range(6 * 34))


def test_workers_that_leave_hand_over_and_have_not_failed() -> None:
    core = started()
    for attempt in range(1, 6):
        core.failed(DECODE, "draining", attempt)
        assert core.machine.open_requests == 1
        (place,) = core.got(act.Place)
        assert place.message.attempt == attempt + 1 and place.message.failures == 0
        core.run(attempt + 1)
    core.failed(DECODE, "internal", 6)
    assert core.got(act.Place)[0].message.failures == 1


def test_prefill_lost_before_its_token_is_an_attempt_where_decode_cannot_go_on() -> None:
    core = started()
    assert core.died(PREFILL, "prefill") == []
    core.failed(DECODE, "worker_lost")
    assert places(core)[0].message.excluded == (PREFILL,)


def test_decode_that_computes_a_long_rest_is_given_the_time_it_needs() -> None:
    core = started()
    core.died(PREFILL, "prefill")
    for _ in range(8):
        core.wait(1)
        for ask in core.got(act.AskResend):
            core.resent(ask.role, TokenEntry(R, Attempt(1), 0, (), None))
    assert places(core) == []
    core.wait(4)
    assert places(core)[0].message.attempt == 2


def test_prefill_lost_after_its_token_waits_for_decode() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    assert core.died(PREFILL, "prefill") == []
    core.chunk(1, 6)
    core.wait(10)
    assert places(core) == [] and core.tokens == [5, 6]


def test_decode_that_cannot_go_on_without_prefill_is_replaced() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.died(PREFILL, "prefill")
    core.wait(2)
    assert places(core) == []
    core.wait(2)
    assert places(core)[0].message.attempt == 2


def test_a_failed_read_blames_prefill() -> None:
    core = started()
    core.failed(DECODE, "transfer_failed")
    assert places(core)[0].message.excluded == (PREFILL,)


def test_a_hopeless_failure_is_not_repeated() -> None:
    core = started()
    core.failed(DECODE, "poison_request")
    assert core.got(act.Fail)[0].code is Code.POISON_REQUEST


def test_messages_of_other_incarnations_and_attempts_change_nothing() -> None:
    core = started()
    newer = DECODE_2
    core.chunk(0, 5, ref=newer)
    core.failed(newer, "internal")
    core.failed(DECODE, "internal", attempt=7)
    core.died(newer, "decode")
    assert core.tokens == [] and core.all(act.EndAttempt) == []


# -- silence -------------------------------------------------------------------------------


def test_a_fresh_request_fails_fast_when_our_connection_is_down() -> None:
    core = Core()
    core.open()
    core.feed(ev.PlaceUnanswered(R, Attempt(1), Silence.DISCONNECTED))
    assert core.got(act.Fail)[0].code is Code.CONTROL_PLANE_DOWN


def test_an_absent_scheduler_gets_five_seconds() -> None:
    core = Core()
    core.open()
    asked = 1
    while not core.all(act.Fail):
        core.feed(ev.PlaceUnanswered(R, Attempt(1), Silence.NO_RESPONDER))
        core.wait(0.5)
        asked += len(places(core))
    assert core.now == pytest.approx(105, abs=1) and asked > 3
    assert core.all(act.Fail)[0].code is Code.CONTROL_PLANE_DOWN


def test_a_returning_scheduler_without_workers_yet_is_asked_again() -> None:
    core = Core()
    core.open()
    core.feed(ev.PlaceUnanswered(R, Attempt(1), Silence.NO_RESPONDER))
    core.wait(0.2)
    core.feed(ev.Placed(R, Attempt(1), NO_WORKER))
    core.wait(1.0)
    core.placed()
    assert core.got(act.SendJob) and core.all(act.Fail) == []


def test_a_job_without_responder_goes_elsewhere() -> None:
    core = Core()
    core.open()
    core.placed()
    core.feed(ev.JobUnanswered(R, Attempt(1), Role.DECODE, Silence.NO_RESPONDER))
    assert places(core)[0].message.excluded == (DECODE,)


def test_one_job_timeout_is_no_proof() -> None:
    core = Core()
    core.open()
    core.placed()
    core.feed(ev.JobUnanswered(R, Attempt(1), Role.DECODE, Silence.TIMEOUT))
    core.wait(0)
    assert core.got(act.SendJob) and core.all(act.EndAttempt) == []
    core.feed(ev.JobUnanswered(R, Attempt(1), Role.DECODE, Silence.TIMEOUT))
    assert core.got(act.EndAttempt)


def test_another_incarnation_that_accepts_is_not_the_one_that_was_placed() -> None:
    core = Core()
    core.open()
    core.placed()
    answer = Accepted(DECODE.worker, DECODE_2.epoch)
    core.feed(ev.JobAnswered(R, Attempt(1), Role.DECODE, answer))
    assert core.got(act.Cancel)[0].worker == DECODE.worker


def test_a_placement_of_an_older_leader_is_fenced() -> None:
    core = Core()
    core.open()
    core.placed(leader_epoch=5)
    core.open(RequestId("r2"))
    core.placed(request=RequestId("r2"), leader_epoch=4)
    assert core.got(act.SendJob) == []
    core.wait(0.5)
    core.placed(request=RequestId("r2"), leader_epoch=5)
    assert core.got(act.SendJob)


def test_a_stalled_stream_asks_and_takes_what_it_missed() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    core.wait(0.5)
    assert core.got(act.AskResend) == []
    core.wait(0.6)
    (ask,) = core.got(act.AskResend)
    assert (ask.role, ask.message.index) == (Role.DECODE, 2)
    core.resent(Role.DECODE, TokenEntry(R, Attempt(1), 2, (7, 8), None))
    assert core.tokens == [5, 6, 7, 8]


def test_before_the_first_token_both_holders_are_asked() -> None:
    core = started()
    core.wait(1.1)
    assert {ask.role for ask in core.got(act.AskResend)} == {Role.PREFILL, Role.DECODE}
    core.resent(Role.PREFILL, TokenEntry(R, Attempt(1), 0, (), None))
    core.resent(Role.DECODE, TokenEntry(R, Attempt(1), 0, (), None))
    core.wait(0.5)
    assert core.got(act.AskResend) == []
    core.wait(0.6)
    assert len(core.got(act.AskResend)) == 2


def test_a_gap_is_asked_for_sooner() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(2, 7)
    core.wait(1.1)
    core.resent(Role.DECODE, TokenEntry(R, Attempt(1), 1, (6,), None))
    assert core.tokens == [5, 6, 7]


def test_a_decode_that_knows_nothing_ends_the_attempt() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    core.wait(1.1)
    core.resent(Role.DECODE, Refused("unknown_request", "", None))
    assert core.all(act.EndAttempt) and core.all(act.StartAttempt)[-1].attempt == 2


def test_a_prefill_that_knows_nothing_leaves_decode_a_while() -> None:
    core = started()
    core.wait(1.1)
    core.resent(Role.PREFILL, Refused("unknown_request", "", None))
    core.resent(Role.DECODE, TokenEntry(R, Attempt(1), 0, (5,), None))
    assert core.tokens == [5]
    core.wait(0.5)
    assert core.all(act.EndAttempt) == []


def test_a_repeated_job_that_is_over_at_prefill_does_not_stop_decode() -> None:
    """The answer to the first one was lost; meanwhile the pages were handed over."""
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    stale = Refused("stale", "this attempt has ended", None)
    core.feed(ev.JobAnswered(R, Attempt(1), Role.PREFILL, stale))
    core.wait(10.0)
    assert core.all(act.EndAttempt) == core.all(act.Fail) == []


def test_a_job_that_is_over_at_decode_is_another_attempt_and_no_error() -> None:
    core = started()
    stale = Refused("stale", "this attempt is over", None)
    core.feed(ev.JobAnswered(R, Attempt(1), Role.DECODE, stale))
    assert core.all(act.StartAttempt)[-1].attempt == 2
    assert core.all(act.Fail) == []


def test_prefill_is_spared_when_decode_began_without_it() -> None:
    """Its job may still wait there for pages, with nobody to tell it."""
    core = started()
    core.chunk(0, 5)
    (cancel,) = core.got(act.Cancel)
    assert (cancel.role, cancel.message.attempt, cancel.message.cause) == (
        Role.PREFILL,
        1,
        "bypassed",
    )
    core.chunk(1, 6)
    assert len(core.all(act.Cancel)) == 1
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    assert core.all(act.Cancel) == []


def test_two_timeouts_in_a_row_prove_a_death_and_an_answer_resets_them() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    core.wait(1.1)
    core.unsent(Role.DECODE, Silence.TIMEOUT)
    core.wait(0.1)
    core.resent(Role.DECODE, TokenEntry(R, Attempt(1), 2, (), None))
    core.wait(1.1)
    core.unsent(Role.DECODE, Silence.TIMEOUT)
    assert core.all(act.EndAttempt) == []
    core.wait(0.1)
    core.unsent(Role.DECODE, Silence.TIMEOUT)
    assert core.got(act.EndAttempt)


def test_an_outage_of_the_bus_fails_nobody() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.chunk(1, 6)
    for _ in range(10):
        core.wait(1.1)
        for ask in core.got(act.AskResend):
            core.unsent(ask.role, Silence.DISCONNECTED)
    core.feed(ev.BusReturned())
    assert [ask.role for ask in core.got(act.AskResend)] == [Role.DECODE]
    core.unsent(Role.DECODE, Silence.NO_RESPONDER)
    core.died(DECODE, "decode")
    assert core.all(act.EndAttempt) == []
    core.wait(0.5)
    assert core.got(act.AskResend)
    core.resent(Role.DECODE, TokenEntry(R, Attempt(1), 2, (7,), None))
    assert core.tokens == [5, 6, 7]
    core.wait(10)
    core.died(DECODE, "decode")
    assert core.got(act.EndAttempt)


def test_a_job_caught_by_an_outage_is_sent_again() -> None:
    core = Core()
    core.open()
    core.placed()
    core.feed(ev.JobUnanswered(R, Attempt(1), Role.DECODE, Silence.DISCONNECTED))
    core.wait(0.3)
    assert len(core.got(act.SendJob)) == 1
    core.feed(ev.JobUnanswered(R, Attempt(1), Role.DECODE, Silence.DISCONNECTED))
    core.feed(ev.BusReturned())
    assert len(core.got(act.SendJob)) == 1


def test_a_resumed_request_waits_out_an_outage_before_its_placement() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.failed(DECODE, "internal")
    for _ in range(30):
        core.feed(ev.PlaceUnanswered(R, Attempt(2), Silence.DISCONNECTED))
        core.wait(1)
    assert core.all(act.Fail) == []
    core.feed(ev.BusReturned())
    assert core.all(act.Place)[-1].message.attempt == 2
