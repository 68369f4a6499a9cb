"""The life of a request in the core: the regular way, and each way in which it can go wrong."""

from __future__ import annotations

import pytest

from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.admission import Limits
from services.gateway.core.events import Role, Silence
from services.gateway.core.request import Policy
from shared.errors import Code
from shared.ids import Attempt, RequestId
from shared.wire.requests import (
    DecodeJob,
    PlacementEnded,
    PrefillJob,
    Refused,
    Sampling,
)
from tests.services.gateway.core.builders import (
    DECODE,
    DECODE_2,
    IDENTITY,
    PREFILL,
    Core,
    R,
)


def started() -> Core:
    core = Core()
    core.open()
    core.run()
    return core


def places(core: Core) -> list[act.Place]:
    return core.got(act.Place)


# -- the regular way -----------------------------------------------------------------------


def test_decode_reserves_before_prefill_is_asked() -> None:
    core = Core()
    core.open()
    (place,) = places(core)
    assert (place.message.prompt_tokens, place.message.max_tokens) == (20, 8)
    assert len(place.message.block_hashes) == 1
    core.placed()
    (job,) = core.got(act.SendJob)
    assert isinstance(job.message, DecodeJob) and job.message.prefill == PREFILL
    core.accepted(Role.DECODE, DECODE)
    (job,) = core.got(act.SendJob)
    assert isinstance(job.message, PrefillJob) and job.message.decode == DECODE
    assert job.message.tokens == tuple(range(20))
    core.accepted(Role.PREFILL, PREFILL)
    assert core.last == []


def test_first_token_from_prefill_then_decode_then_the_end() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL, cached=16)
    (deliver,) = core.got(act.Deliver)
    assert (deliver.token_ids, deliver.cached_tokens) == ((5,), 16)
    core.chunk(1, 6)
    core.chunk(2, 99, finish="stop")
    assert core.tokens == [5, 6, 99] and core.finish == "stop"
    ended = core.got(act.ReportEnd)[0].message
    signature = core.all(act.Place)[0].message.signature
    assert ended == PlacementEnded(R, Attempt(1), "finished", (), signature, (), 3)
    assert core.all(act.Cancel) == [] and core.machine.open_requests == 0


def test_first_token_and_decode_chunk_may_cross() -> None:
    core = started()
    core.chunk(1, 6)
    assert core.tokens == []
    core.chunk(0, 5, ref=PREFILL)
    assert core.tokens == [5, 6]


def test_colocated_sends_one_job() -> None:
    core = Core()
    core.open()
    core.placed(prefill=None)
    core.accepted(Role.DECODE, DECODE)
    assert len(core.all(act.SendJob)) == 1
    core.chunk(0, 5, cached=0)
    assert core.tokens == [5]


def test_tokens_may_overtake_the_acceptance() -> None:
    core = Core()
    core.open()
    core.placed(prefill=None)
    core.chunk(0, 5)
    assert core.tokens == [5]


def test_the_limit_ends_a_worker_that_forgets_to() -> None:
    core = started()
    core.chunk(0, *range(8))
    assert core.finish == "length"
    assert {cancel.role for cancel in core.got(act.Cancel)} == {Role.PREFILL, Role.DECODE}


# -- endings from outside ------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["client_gone", "client_too_slow", "draining"])
def test_a_closed_client_ends_the_work_at_every_holder(cause: str) -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.feed(ev.Closed(R, cause))
    cancels = core.got(act.Cancel)
    assert {(c.role, c.message.attempt, c.message.cause) for c in cancels} == {
        (Role.PREFILL, 1, cause),
        (Role.DECODE, 1, cause),
    }
    assert core.got(act.ReportEnd)[0].message.outcome == "cancelled"
    assert core.machine.open_requests == 0
    assert [a.what for a in core.chunk(1, 6) if isinstance(a, act.Count)] == ["stale_chunk"]


def test_a_client_gone_while_placing_releases_a_late_placement() -> None:
    core = Core()
    core.open()
    core.feed(ev.Closed(R, "client_gone"))
    core.placed()
    assert core.got(act.ReportEnd)[0].message.outcome == "stale"
    assert core.all(act.SendJob) == []


def test_a_stop_string_counts_as_finished() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.feed(ev.Closed(R, "stop"))
    assert core.got(act.ReportEnd)[0].message.outcome == "finished"
    assert len(core.got(act.Cancel)) == 2


def test_the_deadline_ends_everything() -> None:
    core = started()
    core.wait(61)
    assert core.got(act.Fail)[0].code is Code.DEADLINE_EXCEEDED
    assert len(core.got(act.Cancel)) == 2


# -- cancels and reports are repeated, boundedly -------------------------------------------


def test_an_unanswered_cancel_is_repeated_then_left_to_the_lease() -> None:
    core = started()
    core.feed(ev.Closed(R, "client_gone"))
    core.feed(ev.CancelAnswered(R, Attempt(1), PREFILL.worker))
    sent = 0
    for _ in range(100):
        core.feed(ev.CancelUnanswered(R, Attempt(1), DECODE.worker, Silence.TIMEOUT))
        sent += len([a for a in core.wait(20) if isinstance(a, act.Cancel)])
    assert sent == 5 and core.machine.open_cancels == 0


def test_cancel_and_report_wait_for_the_bus() -> None:
    core = started()
    core.feed(ev.Closed(R, "client_gone"))
    ended = core.got(act.ReportEnd)[0].message
    core.feed(ev.EndUnsent(ended))
    core.feed(ev.CancelUnanswered(R, Attempt(1), DECODE.worker, Silence.DISCONNECTED))
    assert core.wait(100) == []
    core.feed(ev.BusReturned())
    assert core.got(act.ReportEnd)[0].message == ended
    assert [cancel.worker for cancel in core.got(act.Cancel)] == [DECODE.worker]


def test_nobody_there_means_nothing_is_held() -> None:
    core = started()
    core.feed(ev.Closed(R, "client_gone"))
    core.feed(ev.CancelUnanswered(R, Attempt(1), DECODE.worker, Silence.NO_RESPONDER))
    core.feed(ev.CancelAnswered(R, Attempt(1), PREFILL.worker))
    assert core.machine.open_cancels == 0 and not core.machine.busy


def test_the_scheduler_hears_how_long_the_first_token_took() -> None:
    core = Core()
    core.open()
    core.now += 3.0
    core.run()
    core.now += 0.5
    core.chunk(0, 5, ref=PREFILL)
    core.now += 4.0
    core.chunk(1, 6, finish="stop")
    (report,) = core.got(act.ReportEnd)
    assert report.message.ttft_s == pytest.approx(0.5)


def test_a_declared_death_leaves_no_cancel_to_wait_for() -> None:
    """Even where the server still takes the dead for a listener, and each question costs time."""
    core = started()
    core.died(DECODE, "decode")
    assert [cancel.worker for cancel in core.got(act.Cancel)] == [PREFILL.worker]
    core.feed(ev.CancelAnswered(R, Attempt(1), PREFILL.worker))
    assert core.machine.open_cancels == 0


# -- admission and manners -----------------------------------------------------------------


def test_beyond_the_cap_requests_are_refused_with_a_time() -> None:
    core = Core(limits=Limits(requests=1))
    core.open()
    core.open(RequestId("r2"))
    (fail,) = core.got(act.Fail)
    assert fail.code is Code.QUEUE_FULL and fail.retry_after_s is not None
    core.feed(ev.Closed(R, "client_gone"))
    core.open(RequestId("r3"))
    assert core.got(act.Place)


def test_waiting_prompt_tokens_are_bounded_until_the_first_token() -> None:
    core = Core(limits=Limits(waiting_tokens=25))
    core.open()
    core.open(RequestId("r2"))
    assert core.got(act.Fail)
    core.run()
    core.chunk(0, 5, ref=PREFILL)
    core.open(RequestId("r3"))
    assert core.got(act.Place)


def test_a_message_that_the_bus_cannot_carry_is_told() -> None:
    core = Core()
    core.open()
    core.placed()
    core.feed(ev.JobUnanswered(R, Attempt(1), Role.DECODE, Silence.TOO_LARGE))
    assert core.got(act.Fail)[0].code is Code.BODY_TOO_LARGE


def test_handle_is_total() -> None:
    core = Core()
    with pytest.raises(TypeError):
        core.machine.handle("nonsense", 0.0)  # type: ignore[arg-type]


def test_a_story_is_told() -> None:
    core = started()
    core.died(DECODE, "decode")
    assert "lost" in core.machine.story(R)
    core.feed(ev.Closed(R, "client_gone"))
    assert "cancelled" in core.machine.story(R)
    assert "unknown" in core.machine.story(RequestId("nobody"))


def test_a_seed_and_place_of_a_token_do_not_depend_on_the_attempt() -> None:
    core = Core(Policy(identity=IDENTITY))
    core.open(sampling=Sampling(0.7, 0.9, 123, 8, (99,)))
    core.run()
    core.chunk(0, 5, ref=PREFILL)
    core.died(DECODE, "decode")
    core.placed(2, decode=DECODE_2)
    job = core.got(act.SendJob)[0].message
    assert isinstance(job, DecodeJob)
    assert (job.sampling.seed, job.first_index) == (123, 1)


def test_jobs_name_the_incarnation_that_was_placed() -> None:
    core = started()
    jobs = {send.role: send.message.epoch for send in core.all(act.SendJob)}
    assert jobs == {Role.DECODE: DECODE.epoch, Role.PREFILL: PREFILL.epoch}


def test_a_job_that_met_another_incarnation_is_placed_again_at_once() -> None:
    core = Core()
    core.open()
    core.placed()
    gone = Refused("worker_lost", "the incarnation that this is for is gone", None)
    core.feed(ev.JobAnswered(R, Attempt(1), Role.DECODE, gone))
    again = core.all(act.Place)[-1].message
    assert (again.attempt, again.excluded) == (2, (DECODE,))
