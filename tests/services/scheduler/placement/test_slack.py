"""What a delay after the first token counts: by what the TPOT objective leaves."""

from __future__ import annotations

import dataclasses

import pytest

from services.scheduler.core.machine import SchedulerMachine
from services.scheduler.core.placement.view import View
from shared import costs
from shared.ids import WorkerId
from shared.wire.workers import Reading
from tests.services.scheduler.builders import COST, beat, placed
from tests.services.scheduler.placement.scenes import add, core, fresh, links_carry, view


def test_slack_is_what_the_objective_leaves_of_all_steps() -> None:
    """Thirty-two tokens in steps of 20 ms, each further stream 1 ms more."""
    for running, step_s in ((0, 0.020), (10, 0.030)):
        found, decode = _seen(running=running)
        assert found.slack_s(decode) == pytest.approx((0.1 - step_s) * 32)
    found, decode = _seen(running=90)
    assert found.slack_s(decode) == 0.0


def test_steps_that_prompts_share_leave_less() -> None:
    """A share of the time goes to steps of 64 prompt tokens: those take 0.01 + 0.064 s."""
    machine = core("baton")
    add(machine, "decode-0", step_tokens=64)
    found, decode = _look(machine)
    free_s = found.slack_s(decode)
    machine.world.paces.add(WorkerId("decode-0"), 0.5 * 20.0, 0.5)
    machine.world.paces.add(WorkerId("decode-0"), 0.0, 60.0)
    found, decode = _look(machine, 60.0)
    busy = machine.world.paces.busy(WorkerId("decode-0"), 60.0)
    assert 0.0 < busy < 1.0
    step_s = 1.0 / ((1.0 - busy) / 0.020 + busy / 0.074)
    assert found.slack_s(decode) == pytest.approx((0.1 - step_s) * 32)
    assert found.slack_s(decode) < free_s


def test_a_delay_counts_a_share_within_the_slack_and_whole_beyond() -> None:
    found, _ = _seen()
    share = found.weights.exposed_share
    assert found.after_first_s(2.0, 3.0) == pytest.approx(share * 2.0)
    assert found.after_first_s(5.0, 3.0) == pytest.approx(share * 3.0 + 2.0)
    assert found.after_first_s(0.0, 0.0) == 0.0


@pytest.mark.parametrize(("tpot_slo_s", "route"), [(1.0, "disaggregated"), (0.05, "colocated")])
def test_a_handoff_that_would_cost_the_objective_is_not_made(tpot_slo_s: float, route: str) -> None:
    """Twenty streams would be stalled for a while; the link takes five seconds."""
    machine = core("baton", split="baton_cost")
    links_carry(machine, 1.5e6)
    add(machine, "prefill-0")
    add(machine, "decode-0", running=20, step_tokens=64)
    request = dataclasses.replace(fresh("r", 20), tpot_slo_s=tpot_slo_s)
    placement = placed(machine, request, 0.5)
    assert {c.prefill for c in placement.candidates} == {None, "prefill-0"}, "both were weighed"
    assert placement.route == route


def test_a_decode_worker_computes_in_chunks_beside_what_runs() -> None:
    """161 tokens: at once where nothing runs or nothing is said, else what four streams leave of
    a step, never less than a block."""
    for running, step_tokens, chunk in ((0, 20, 161), (4, 0, 161), (4, 44, 40), (4, 10, 16)):
        found, decode = _seen(running=running, step_tokens=step_tokens)
        assert found.chunk_tokens(decode) == chunk
        streams = running if step_tokens else 0
        expected_s = costs.filled_s(COST, 161, 0, chunk, streams)
        assert found.prefill_s(decode, 0) == pytest.approx(expected_s)
        assert found.prefilling(decode)(0) == found.prefill_s(decode, 0)


def test_a_report_that_makes_sense_is_taken_whole() -> None:
    """Each figure of a load arrives, and none is what it would be if nobody had said it."""
    machine = core("baton")
    report = beat(
        "decode-0", work_left_s=0.5, running=3, placement_sequence=7, step_tokens=64, pages_free=9
    )
    reading = (Reading(WorkerId("prefill-0"), 3),)
    load = dataclasses.replace(report.load, queued_requests=2, queued_tokens=5, reading=reading)
    silent = {field.name for field in dataclasses.fields(load) if not getattr(load, field.name)}
    assert not silent
    machine.handle(dataclasses.replace(report, load=load), 0.0)
    known = machine.cluster.get(WorkerId("decode-0"))
    assert known is not None and known.report.load == load


def _seen(**fields: int):  # type: ignore[no-untyped-def]
    machine = core("baton")
    add(machine, "decode-0", **fields)  # type: ignore[arg-type]
    return _look(machine)


def _look(machine: SchedulerMachine, now: float = 0.5):  # type: ignore[no-untyped-def]
    found: View = view(machine, fresh("r", 10), now)
    return found, found.decodes.workers[0]
