"""Every way out of the machine."""

from __future__ import annotations

import pytest

from services.decode.core import actions as do
from services.decode.core import events as on
from shared.errors import Code
from shared.ids import Epoch, RequestId

from .rig import GATEWAY, Rig, job, refused, rules, span_names


def test_the_deadline_ends_everything() -> None:
    rig = Rig()
    rig.submit(job("r1", deadline_s=3.0))
    rig.submit(job("r2", prefill=None, deadline_s=3.0))
    rig.tick(3.0)
    rig.run()
    assert rig.logs[RequestId("r1")].failed is Code.DEADLINE_EXCEEDED
    assert rig.logs[RequestId("r2")].failed is Code.DEADLINE_EXCEEDED
    rig.at_rest()


def test_drain_refuses_the_new_finishes_the_running_and_hands_over_the_rest() -> None:
    rig = Rig(limits=rules(max_sequences=2))
    quick, slow = job("r1", prefill=None), job("r2")
    rig.submit(quick)
    rig.submit(slow)
    rig.submit(job("r3"))
    rig.send(on.DrainStarted())
    assert refused(rig.replies.get(3)) == Code.DRAINING
    assert refused(rig.submit(job("r4"))) == Code.DRAINING
    rig.run()
    rig.finished(quick)
    rig.send(on.DrainExpired())
    assert rig.logs[slow.request].failed is Code.DRAINING
    rig.run()
    rig.at_rest()


def test_a_lost_gateway_takes_its_sequences_along_but_not_those_of_its_successor() -> None:
    rig = Rig()
    rig.send(on.JobArrived(901, job("r1"), Epoch(4)))
    rig.send(on.JobArrived(902, job("r2", prefill=None), Epoch(5)))
    rig.send(on.PeerLost(GATEWAY, "gateway", Epoch(4)))
    assert list(rig.machine.desk.sequences) == ["r2"]
    rig.run()
    rig.at_rest()


@pytest.mark.parametrize("late", [Epoch(4), None])
def test_a_job_of_an_older_gateway_is_refused(late: Epoch | None) -> None:
    """Spoken late, or before that gateway had an epoch: nobody would read its tokens."""
    rig = Rig()
    rig.send(on.JobArrived(901, job("r1", prefill=None), Epoch(5)))
    rig.send(on.JobArrived(902, job("r2", prefill=None), late))
    assert refused(rig.replies[902]) == Code.STALE
    assert rig.machine.counts["fenced_epoch"] == 1
    rig.run()
    rig.at_rest()


def test_a_job_of_a_replaced_gateway_is_refused_before_its_successor_spoke() -> None:
    rig = Rig()
    rig.send(on.PeerLost(GATEWAY, "gateway", Epoch(4), replaced=True))
    rig.send(on.JobArrived(901, job("r1", prefill=None), Epoch(4)))
    assert refused(rig.replies[901]) == Code.STALE
    rig.send(on.JobArrived(902, job("r2", prefill=None), Epoch(5)))
    assert list(rig.machine.desk.sequences) == ["r2"]
    rig.run()
    rig.at_rest()


def test_a_poisonous_sequence_fails_alone() -> None:
    rig = Rig()
    jobs = [job(f"r{n}", tokens=[n, 5, 6], prefill=None) for n in range(3)]
    for one in jobs:
        rig.submit(one)
    while rig.work:
        action = rig.work.pop(0)
        poisoned = isinstance(action, do.RunStep) and any(
            item.start == 0 and item.tokens[0] == 1 for item in action.items
        )
        if poisoned and isinstance(action, do.RunStep):
            rig.send(on.StepFailed(action.step, "boom"))
        else:
            rig.happen(action)
    assert rig.logs[RequestId("r1")].failed is Code.INTERNAL
    rig.finished(jobs[0])
    rig.finished(jobs[2])
    rig.at_rest()


def test_every_ending_closes_the_job_and_settles_once() -> None:
    rig = Rig()
    rig.handoff(job("r1"))
    rig.submit(job("r2"))
    rig.cancel("r2")
    rig.submit(job("r3", deadline_s=1.0))
    rig.tick(1.0)
    assert [(end.request, end.outcome) for end in rig.closed] == [
        ("r1", "length"),
        ("r2", "cancelled"),
        ("r3", "deadline_exceeded"),
    ]
    assert span_names(rig).count("kv.settle") == 3
    handoff = [span.name for span in rig.traced if span.request == "r1"]
    assert handoff.count("transfer.pull") == 3 == handoff.count("decode.verify")
    assert {"decode.reserve", "decode.queue", "decode.generate"} <= set(handoff)
    pulls = [span for span in rig.traced if span.name == "transfer.pull"]
    assert [span.link for span in pulls] == ["link-0", "link-1", "link-2"]


def test_an_unknown_event_is_a_programming_error() -> None:
    with pytest.raises(TypeError):
        Rig().machine.handle("nonsense", 0.0)  # type: ignore[arg-type]
