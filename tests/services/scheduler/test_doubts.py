"""A worker whose connection ended: back within a moment, or dead long before its silence tells."""

from __future__ import annotations

import pytest

from services.scheduler.core.events import (
    Action,
    AskPresence,
    BusLost,
    Declare,
    Disconnected,
    LeadLost,
    LeadTaken,
    Presence,
)
from services.scheduler.core.machine import SchedulerMachine
from shared.ids import Epoch, WorkerId
from tests.services.scheduler.builders import ask, beat, machine, placed

DECODE = WorkerId("decode-0")


def cluster(leader_epoch: int = 1) -> SchedulerMachine:
    core = machine(leader_epoch=leader_epoch)
    for name in ("prefill-0", "decode-0", "decode-1"):
        core.handle(beat(name), 0.0)
    return core


def gone(core: SchedulerMachine, name: WorkerId = DECODE, role: str = "decode") -> list[Action]:
    return core.handle(Disconnected(name, role), 1.0)


def say(
    core: SchedulerMachine, ask: Action, present: bool | None, epoch: int | None = None
) -> list[Action]:
    assert isinstance(ask, AskPresence)
    found = Presence(ask.worker, ask.role, Epoch(epoch or ask.epoch), present)
    actions = core.handle(found, 1.0)
    core.check()
    return actions


def test_absence_that_lasts_is_death() -> None:
    core = cluster()
    (asked,) = gone(core)
    assert asked == AskPresence(DECODE, "decode", Epoch(1))
    waited_s = 0.0
    for _ in range(3):
        (asked,) = say(core, asked, present=False)
        assert isinstance(asked, AskPresence)
        waited_s += asked.after_s
    assert waited_s == pytest.approx(0.3)
    (declared,) = say(core, asked, present=False)
    assert isinstance(declared, Declare)
    lost = declared.lost
    assert (lost.worker, lost.epoch, lost.cause) == ("decode-0", 1, "disconnected")
    assert core.counts["lost_disconnected"] == 1
    assert say(core, asked, present=False) == []
    assert placed(core, ask(), 1.1).decode.worker == "decode-1"


def test_whoever_answers_in_time_stays() -> None:
    core = cluster()
    (asked,) = gone(core)
    (asked,) = say(core, asked, present=False)
    assert say(core, asked, present=True) == []
    assert say(core, asked, present=False) == []
    core.handle(beat("decode-0", sequence=2), 1.1)
    assert len(gone(core)) == 1
    assert core.counts["lost_disconnected"] == 0


def test_nothing_is_placed_on_one_in_doubt_until_it_beats_again() -> None:
    core = cluster()
    gone(core)
    gone(core, WorkerId("decode-1"))
    core.handle(beat("decode-1", sequence=2), 1.1)
    chosen = {placed(core, ask(f"r{n}"), 1.2).decode.worker for n in range(8)}
    assert chosen == {"decode-1"}
    core.handle(beat("decode-0", sequence=2), 1.3)
    assert {placed(core, ask(f"s{n}"), 1.4).decode.worker for n in range(8)} >= {"decode-0"}


def test_a_second_loss_begins_no_second_line_of_questions() -> None:
    core = cluster()
    assert len(gone(core)) == 1
    assert gone(core) == []


def test_the_answer_about_an_older_incarnation_says_nothing_of_the_new_one() -> None:
    core = cluster()
    (asked,) = gone(core)
    core.handle(beat("decode-0", epoch=2), 1.1)
    for _ in range(5):
        assert say(core, asked, present=False, epoch=1) == []
    worker = core.cluster.get(DECODE)
    assert worker is not None and worker.report.epoch == 2


def test_no_answer_at_all_proves_nothing() -> None:
    core = cluster()
    (asked,) = gone(core)
    assert say(core, asked, present=None) == []
    assert core.cluster.get(DECODE) is not None


@pytest.mark.parametrize("event", [BusLost(), LeadLost()])
def test_who_hears_nothing_or_does_not_lead_declares_nobody(event: BusLost | LeadLost) -> None:
    core = cluster()
    (asked,) = gone(core)
    core.handle(event, 1.0)
    for _ in range(5):
        assert say(core, asked, present=False) == []
    assert gone(core) == []
    assert core.cluster.get(DECODE) is not None


def test_a_follower_asks_nobody_and_may_as_the_next_leader() -> None:
    core = cluster(leader_epoch=0)
    assert gone(core) == []
    core.handle(LeadTaken(Epoch(3)), 1.0)
    assert len(gone(core)) == 1


@pytest.mark.parametrize(
    ("name", "role"),
    [("decode-7", "decode"), ("decode-0", "prefill"), ("gateway-0", "gateway"), ("", "scheduler")],
)
def test_unknown_names_and_names_of_another_role_are_nobodys(name: str, role: str) -> None:
    core = cluster()
    core.handle(beat("gateway-0"), 0.0)
    assert gone(core, WorkerId(name), role) == []
    assert core.counts["disconnections"] == 0
