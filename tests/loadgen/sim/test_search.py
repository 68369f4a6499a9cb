"""Runs repeat exactly, depend on no date, try every fault, and broken ones become small."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from loadgen.sim.case import PLANNED, Case, Fault, dump, load
from loadgen.sim.drawing import draw
from loadgen.sim.search import Tally, cut_cases, run, run_seeds, shrink
from tests.architecture.sources import ROOT
from tests.loadgen.sim import planted

_DIGESTS = """
from loadgen.sim.drawing import draw
from loadgen.sim.search import run
print([run(draw(seed)).digest for seed in range(6)])
"""


def _digests(hash_seed: str) -> str:
    """In an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _DIGESTS],
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    assert _digests("1") == _digests("2")


def test_seeds_keep_all_rules_and_every_kind_of_fault_fires() -> None:
    tally = run_seeds(range(5 * len(PLANNED)))
    assert tally.broken == []
    assert tally.silent() == []


def test_crashes_at_events_keep_all_rules() -> None:
    """A sample; `make sim-faults` runs them all."""
    tally = Tally()
    for case in list(cut_cases())[::41]:
        tally.add(run(case))
    assert tally.broken == []
    assert tally.runs > 20


@pytest.mark.parametrize("seed", range(4))
def test_jumps_of_the_date_change_nothing(seed: int) -> None:
    case = replace(draw(seed), faults=())
    jumps = tuple(
        Fault(kind="wall_jump", host=host, at_s=1.5, amount=3600.0)
        for host in ("gateway-0", "prefill-0", "decode-0")
    )
    assert run(replace(case, faults=jumps)).digest == run(case).digest


@pytest.mark.parametrize("seed", range(8))
def test_without_faults_everyone_is_served(seed: int) -> None:
    case = draw(seed)
    shape = replace(case.shape, decode_pages=64, prefill_pages=64, max_sequences=16)
    orders = tuple(
        replace(order, leaves_at_s=None, leaves_after=None, stops_after=None, deadline_s=8.0)
        for order in case.orders
    )
    outcome = run(replace(case, shape=shape, orders=orders, faults=()))
    assert outcome.violation is None
    assert outcome.endings == {"finished": len(orders) + shape.gateways}


def test_a_case_survives_being_written() -> None:
    for seed in range(20):
        case = draw(seed)
        assert load(dump(case)) == case


def test_a_broken_case_becomes_small(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.double_commit(monkeypatch)
    case, rule = _first_broken()
    small = shrink(case, rule, most_runs=80)
    assert len(small.orders) < len(case.orders)
    assert _tokens(small) < 0.8 * _tokens(case)
    outcome = run(small, words=True)
    assert outcome.violation is not None
    assert outcome.violation.request in outcome.story


def _tokens(case: Case) -> int:
    return sum(len(order.prompt) + order.max_tokens for order in case.orders)


def _first_broken() -> tuple[Case, str]:
    for seed in range(200):
        outcome = run(draw(seed))
        if outcome.violation is not None:
            return outcome.case, outcome.violation.rule
    raise AssertionError("nothing was found")
