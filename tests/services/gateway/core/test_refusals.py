"""A worker or the scheduler says no before anything ran."""

from __future__ import annotations

from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.events import Role
from services.gateway.core.request import Policy
from shared.errors import Code
from shared.ids import Attempt
from shared.wire.requests import (
    Refused,
)
from tests.services.gateway.core.builders import (
    DECODE,
    IDENTITY,
    PREFILL,
    Core,
    R,
    places,
    started,
)

NO_WORKER = Refused("no_worker", "nobody is ready", 1.0)


def test_a_refusing_decode_leaves_prefill_alone() -> None:
    core = Core()
    core.open()
    core.placed()
    refused = Refused("draining", "going", 1.0)
    core.feed(ev.JobAnswered(R, Attempt(1), Role.DECODE, refused))
    assert places(core)[0].message.excluded == (DECODE,)
    assert core.all(act.Cancel) == []


def test_full_decode_is_asked_again_and_then_refused_with_its_reason() -> None:
    core = Core(Policy(identity=IDENTITY, queue_patience_s=5.0))
    core.open()
    refused = Refused("kv_pages_exhausted", "no pages", 3.0)
    attempt = 1
    while not core.all(act.Fail) and attempt < 100:
        core.placed(attempt)
        core.feed(ev.JobAnswered(R, Attempt(attempt), Role.DECODE, refused))
        assert core.all(act.Place)[-1].message.excluded == ()
        core.wait(1.0)
        attempt += 1
    (fail,) = core.all(act.Fail)
    assert (fail.code, fail.retry_after_s) == (Code.KV_PAGES_EXHAUSTED, 3.0)
    assert 4 <= attempt <= 12


def test_a_fresh_request_waits_in_line_for_pages_unless_it_will_not() -> None:
    full = Refused("kv_pages_exhausted", "all full", 1.0)
    patient = Core()
    patient.open()
    patient.feed(ev.Placed(R, Attempt(1), full))
    assert not patient.all(act.Fail)
    patient.wait(1.0)
    assert [place.message.attempt for place in patient.all(act.Place)] == [1, 1]
    hasty = Core()
    hasty.open(no_queue=True)
    hasty.feed(ev.Placed(R, Attempt(1), full))
    (fail,) = hasty.all(act.Fail)
    assert (fail.code, fail.retry_after_s) == (Code.KV_PAGES_EXHAUSTED, 1.0)


def test_a_prompt_that_never_fits_is_refused_at_once() -> None:
    core = Core()
    core.open()
    core.feed(ev.Placed(R, Attempt(1), Refused("kv_pages_exhausted", "too large", None)))
    (fail,) = core.all(act.Fail)
    assert fail.code is Code.KV_PAGES_EXHAUSTED


def test_a_refusing_prefill_releases_decode() -> None:
    core = Core()
    core.open()
    core.placed()
    core.accepted(Role.DECODE, DECODE)
    refused = Refused("queue_full", "full", 1.0)
    core.feed(ev.JobAnswered(R, Attempt(1), Role.PREFILL, refused))
    assert [cancel.role for cancel in core.got(act.Cancel)] == [Role.DECODE]


def test_a_fresh_request_without_worker_is_refused_at_once() -> None:
    core = Core()
    core.open()
    core.feed(ev.Placed(R, Attempt(1), NO_WORKER))
    (fail,) = core.got(act.Fail)
    assert (fail.code, fail.retry_after_s) == (Code.NO_WORKER, 1.0)


def test_a_scheduler_that_has_just_begun_is_asked_again() -> None:
    core = Core()
    core.open()
    core.feed(ev.Placed(R, Attempt(1), Refused("loading", "workers are being heard", 1.0)))
    core.wait(0.2)
    core.placed()
    assert core.got(act.SendJob) and core.all(act.Fail) == []


def test_a_broken_request_waits_for_a_worker_to_come_back() -> None:
    core = started()
    core.chunk(0, 5, ref=PREFILL)
    core.failed(DECODE, "internal")
    assert places(core)[0].message.excluded == (DECODE,)
    core.feed(ev.Placed(R, Attempt(2), NO_WORKER))
    core.wait(0.2)
    (place,) = places(core)
    assert place.message.attempt == 2 and place.message.excluded == ()
    for _ in range(40):
        core.feed(ev.Placed(R, Attempt(2), NO_WORKER))
        core.wait(1.0)
    assert core.all(act.Fail)[0].code is Code.NO_WORKER


def test_a_hopeless_refusal_is_told() -> None:
    core = Core()
    core.open()
    core.placed()
    refused = Refused("incompatible_workers", "layouts differ", None)
    core.feed(ev.JobAnswered(R, Attempt(1), Role.DECODE, refused))
    assert core.got(act.Fail)[0].code is Code.INCOMPATIBLE_WORKERS
