"""Following and leading: who may declare losses, and what a new leader knows at once."""

from __future__ import annotations

from services.scheduler.core.events import (
    Declare,
    LeadLost,
    LeadTaken,
    Tick,
)
from services.scheduler.core.machine import SchedulerMachine
from shared.ids import Epoch, WorkerId
from shared.wire.blocks import BlocksStored
from shared.wire.workers import WorkerLost
from tests.services.scheduler.builders import ask, beat, machine, names, placed


def follower(*workers: str) -> SchedulerMachine:
    core = machine(leader_epoch=0)
    for worker in workers:
        core.handle(beat(worker), 0.0)
    return core


def ticks(core: SchedulerMachine, start: float, end: float) -> list[WorkerLost]:
    """Every quarter second; who was declared lost."""
    found, now = [], start
    while now <= end:
        found += [a.lost for a in core.handle(Tick(), now) if isinstance(a, Declare)]
        core.check()
        now += 0.25
    return found


def test_a_follower_hears_everything_and_answers_nothing() -> None:
    core = follower("prefill-0", "decode-0")
    assert core.handle(ask(), 0.1) == []
    stored = BlocksStored(WorkerId("prefill-0"), Epoch(1), 1, "device", None, names(1, 2, 3))
    core.handle(stored, 0.2)
    assert core.handle(LeadTaken(Epoch(4)), 0.3) == []
    placement = placed(core, ask(hashes=names(1, 2, 3, 4)), 0.4)
    assert placement.leader_epoch == 4 and placement.cached_blocks == 3
    assert placement.sequence > 4 << 32
    core.handle(LeadLost(), 0.5)
    assert core.handle(ask("r2"), 0.6) == []


def test_a_new_leader_names_the_old_one() -> None:
    core = follower("decode-0")
    (declared,) = core.handle(LeadTaken(Epoch(4), WorkerId("scheduler-1"), Epoch(3)), 1.0)
    assert isinstance(declared, Declare)
    lost = declared.lost
    assert (lost.worker, lost.role, lost.epoch, lost.leader_epoch) == (
        "scheduler-1",
        "scheduler",
        3,
        4,
    )


def test_only_a_leader_declares_and_a_new_one_makes_up_for_it() -> None:
    """The leader and a worker died together: the standby noticed both."""
    core = follower("decode-0", "decode-1")
    core.handle(beat("decode-1", epoch=2), 0.1)
    core.handle(beat("decode-1", epoch=2, sequence=2), 5.9)
    assert ticks(core, 0.0, 6.0) == []
    core.handle(LeadTaken(Epoch(2)), 6.1)
    (lost,) = ticks(core, 6.25, 6.25)
    assert (lost.worker, lost.cause, lost.leader_epoch) == ("decode-0", "silent", 2)


def test_a_follower_forgets_the_long_gone() -> None:
    core = follower("decode-0")
    assert ticks(core, 0.0, 34.0) == []
    assert core.cluster.get(WorkerId("decode-0")) is None


def test_a_leader_that_was_paused_declares_nobody_for_its_own_silence() -> None:
    core = machine()
    core.handle(beat("decode-0"), 0.0)
    assert ticks(core, 0.0, 1.0) == []
    assert ticks(core, 60.0, 62.5) == []
    (lost,) = ticks(core, 62.75, 63.5)
    assert lost.worker == "decode-0"


def test_a_silent_gateway_is_lost_like_a_worker_and_gets_no_work() -> None:
    core = machine()
    for name in ("gateway-0", "prefill-0", "decode-0"):
        core.handle(beat(name), 0.0)
    assert placed(core, ask(), 0.1).decode.worker == "decode-0"
    for name in ("prefill-0", "decode-0"):
        core.handle(beat(name, sequence=2), 2.5)
    (lost,) = ticks(core, 0.25, 3.5)
    assert (lost.worker, lost.role, lost.epoch) == ("gateway-0", "gateway", 1)


def test_a_gateway_that_was_started_again_replaces_itself() -> None:
    core = machine()
    core.handle(beat("gateway-0"), 0.0)
    (declared,) = core.handle(beat("gateway-0", epoch=2), 0.5)
    assert isinstance(declared, Declare) and declared.lost.epoch == 1
    assert core.handle(beat("gateway-0", epoch=2, sequence=2), 0.6) == []


def test_a_decision_of_an_earlier_lead_is_made_again() -> None:
    core = machine()
    for name in ("prefill-0", "decode-0"):
        core.handle(beat(name), 0.0)
    first = placed(core, ask(), 0.1)
    core.handle(LeadLost(), 0.2)
    core.handle(LeadTaken(Epoch(3)), 0.3)
    again = placed(core, ask(), 0.4)
    assert (first.leader_epoch, again.leader_epoch) == (1, 3)
    assert again.sequence > first.sequence
    assert core.cluster.charges() == 2
