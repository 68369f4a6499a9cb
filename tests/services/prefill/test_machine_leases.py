"""The prefill machine: leases, deadlines, drain, pages that run short."""

from __future__ import annotations

from services.prefill.core import events as on
from shared.errors import Code
from shared.ids import Epoch, RequestId
from shared.wire.requests import (
    Acknowledged,
    LeasesRenewed,
    WorkerRef,
)
from shared.wire.workers import WorkerLost
from tests.services.prefill.rig import (
    DECODE,
    GATEWAY,
    GRACE_S,
    LEASE_S,
    LONG,
    Rig,
    code_of,
    expected_token,
    gone,
    job,
)


def test_renewals_keep_pages_and_their_absence_frees_them() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    for _ in range(4):
        rig.tick(LEASE_S - 1)
        assert rig.renew("a") == LeasesRenewed(())
    rig.tick(LEASE_S)
    assert rig.held == 0
    assert [key.request for key in gone(rig.renew("a"))] == ["a"]
    assert rig.machine.counters["lease_expiries"] == 1


def test_every_lease_is_visited_by_the_sweep() -> None:
    rig = Rig()
    for i in range(3):
        rig.start(job(f"r{i}", range(10 * i, 10 * i + 9)))
    rig.settle()
    rig.tick(LEASE_S - 1)
    rig.renew("r0", "r2")
    rig.tick(1)
    assert [key.request for key in gone(rig.renew("r0", "r1", "r2"))] == ["r1"]


def test_a_queued_job_is_notgone() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    assert rig.renew("a") == LeasesRenewed(())
    assert [key.request for key in gone(rig.renew("b"))] == ["b"]


def test_another_incarnation_neither_renews_nor_releases() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    old = WorkerRef(DECODE.worker, Epoch(DECODE.epoch - 1), DECODE.plane_address)
    assert len(gone(rig.renew("a", reader=old))) == 1
    assert rig.release("a", reader=old) == Acknowledged()
    assert rig.held == 11
    assert rig.machine.counters["fenced_epoch"] == 1


def test_a_lease_that_lapses_in_mid_job_fails_the_attempt() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.turn_engine()
    rig.turn_engine()
    rig.tick(LEASE_S)
    assert rig.failures() == {RequestId("a"): Code.WORKER_LOST}
    rig.settle()
    assert rig.held == 0


def test_a_refusal_by_decode_ends_the_job() -> None:
    for code, told in (("stale", {}), ("unknown_request", {"a": "unknown_request"})):
        rig = Rig()
        rig.start(job("a", LONG))
        rig.turn_engine()
        rig.turn_engine()
        rig.refuse(code)
        rig.settle()
        assert rig.failures() == told
        assert rig.held == 0
        assert rig.machine.idle


def test_a_lost_decode_worker_ends_its_jobs() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.settle()
    for epoch, held in ((DECODE.epoch - 1, 11), (DECODE.epoch, 0)):
        lost = WorkerLost(DECODE.worker, "decode", Epoch(epoch), Epoch(1), "silent")
        rig.send(on.PeerLost(lost))
        assert rig.held == held


def test_a_lost_gateway_ends_the_jobs_of_that_incarnation() -> None:
    for epoch, held in ((4, 11), (5, 0)):
        rig = Rig()
        order = job("a", LONG)
        rig.ask(lambda call, o=order: on.JobArrived(call, o, "t", "u", gateway_epoch=5))
        rig.settle()
        lost = WorkerLost(GATEWAY, "gateway", Epoch(epoch), Epoch(1), "silent")
        rig.send(on.PeerLost(lost))
        assert rig.held == held


def test_a_job_ends_at_its_deadline_wherever_it_is() -> None:
    rig = Rig()
    for i in range(5):
        rig.start(job(f"r{i}", range(i, i + 40), deadline_s=10.0))
    for _ in range(8):
        rig.turn_engine()
    rig.tick(10.0)
    assert set(rig.failures().values()) == {Code.DEADLINE_EXCEEDED}
    rig.settle()
    rig.tick(GRACE_S)
    assert rig.machine.idle
    assert rig.held == 0


def test_a_draining_worker_finishes_and_takes_nothing_new() -> None:
    rig = Rig()
    rig.start(job("a", LONG))
    rig.send(on.DrainStarted())
    assert code_of(rig.start(job("b", LONG))) == Code.DRAINING
    rig.settle()
    assert RequestId("a") in rig.first_tokens()
    assert not rig.machine.idle
    rig.send(on.DrainExpired())
    assert rig.machine.idle
    assert rig.held == 0


def test_a_job_waits_for_pages_and_then_runs() -> None:
    rig = Rig(pages=12)
    rig.start(job("a", LONG))
    rig.start(job("b", range(200, 230)))
    rig.settle()
    assert set(rig.first_tokens()) == {"a"}
    rig.release("a")
    rig.settle()
    assert rig.first_tokens()[RequestId("b")].token_ids == (expected_token(range(200, 230)),)
