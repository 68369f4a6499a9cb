"""The scheduler changes: what was asked is asked again, and the old one is not obeyed."""

from __future__ import annotations

from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.events import Silence
from shared.errors import Code
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire.requests import Refused, WorkerRef
from tests.services.gateway.core.builders import (
    DECODE,
    Core,
    R,
    places,
    started,
)

OLD = WorkerRef(WorkerId("scheduler-0"), Epoch(1), "")


def test_a_new_leader_is_asked_at_once() -> None:
    core = Core()
    core.open()
    core.open(RequestId("r2"))
    core.placed(request=RequestId("r2"))
    core.died(OLD, "scheduler", leader_epoch=2)
    (place,) = places(core)
    assert (place.message.request, place.message.attempt) == (R, 1)
    core.placed(leader_epoch=2)
    core.placed(leader_epoch=2)
    assert core.got(act.Count) == [act.Count("ignored_event", "placed_twice")]


def test_a_stream_that_runs_does_not_notice_a_new_leader() -> None:
    core = started()
    assert core.died(OLD, "scheduler", leader_epoch=2) == []


def test_the_old_leader_can_place_and_bury_nobody() -> None:
    """F13: it was paused, and does not know yet."""
    core = started()
    core.died(OLD, "scheduler", leader_epoch=2)
    assert core.died(DECODE, "decode", leader_epoch=1) == [act.Count("fenced", "leader_epoch")]
    core.open(RequestId("r2"))
    core.placed(request=RequestId("r2"), leader_epoch=1)
    assert core.got(act.Count) == [act.Count("fenced", "leader_epoch")]
    assert core.got(act.SendJob) == []
    core.wait(0.2)
    assert len(places(core)) == 1


def test_an_absent_scheduler_is_asked_often_and_for_a_while() -> None:
    core = Core()
    core.open()
    asked = 0
    while not core.all(act.Fail):
        core.feed(ev.PlaceUnanswered(R, Attempt(1), Silence.NO_RESPONDER))
        assert not core.got(act.Fail) or core.now > 104.9
        while not places(core) and not core.all(act.Fail):
            core.wait(0.05)
        asked += 1
    assert 15 < asked < 40
    assert core.all(act.Fail)[0].code is Code.CONTROL_PLANE_DOWN


def test_poison_is_answered_at_once_and_not_to_be_tried_again() -> None:
    core = Core()
    core.open()
    core.feed(ev.Placed(R, Attempt(1), Refused("poison_request", "two workers died")))
    (fail,) = core.got(act.Fail)
    assert fail.code is Code.POISON_REQUEST and fail.retry_after_s is None


def test_a_retry_waits_for_the_budget_and_ends_with_its_reason() -> None:
    core = started()
    core.died(DECODE, "decode")
    held_back = Refused("queue_full", "too many requests are being tried again", 1.0)
    assert places(core)[0].message.failures == 1
    until = core.now + 20
    while not core.all(act.Fail):
        core.feed(ev.Placed(R, Attempt(2), held_back))
        while not places(core) and not core.all(act.Fail):
            core.wait(0.1)
    assert core.now >= until
    assert core.all(act.Fail)[0].code is Code.QUEUE_FULL
    assert core.all(act.Fail)[0].retry_after_s == 1.0
