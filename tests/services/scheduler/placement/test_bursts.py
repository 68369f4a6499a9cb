"""What a prompt costs those that come while it is computed."""

from __future__ import annotations

from services.scheduler.core.machine import SchedulerMachine
from shared.ids import WorkerId
from tests.services.scheduler.builders import placed
from tests.services.scheduler.placement.scenes import add, cluster, core, fresh, view, whole

BUSY, IDLE = WorkerId("prefill-0"), WorkerId("prefill-1")


def later_s(machine: SchedulerMachine, name: WorkerId, now: float) -> float:
    """Of a second of work there, for a request that comes now."""
    found = view(machine, fresh("r", 10), now)
    return found.later_s(found.prefills.by_name[name], 0.0, 1.0)


def test_in_a_burst_an_idle_worker_will_be_asked_too() -> None:
    """Its prompt is waited for by its part of what comes, although nobody went there lately."""
    machine, now = cluster("baton", {"prefill-0": (100, 0.0), "prefill-1": (0, 0.0)}), 1.0
    for number in range(20):
        chosen = placed(machine, whole(f"r{number}"), number / 20).prefill
        assert chosen is not None and chosen.worker == BUSY
    busy, idle = later_s(machine, BUSY, now), later_s(machine, IDLE, now)
    assert 0.0 < idle <= busy
    assert later_s(machine, IDLE, now + 60.0) < idle / 10


def test_where_nothing_comes_nobody_waits() -> None:
    machine = core("baton")
    add(machine, "prefill-0")
    add(machine, "decode-0")
    assert later_s(machine, BUSY, 0.5) == 0.0
    assert placed(machine, fresh("r1", 10), 0.5).candidates[0].terms["later_s"] == 0.0
