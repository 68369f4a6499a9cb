"""Further choices of a request are placed where its prompt's pages are, while that can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.machine import SchedulerMachine
from shared.ids import Epoch, WorkerId
from shared.wire.requests import PlaceRequest, WorkerRef
from tests.services.scheduler.builders import ask, beat, machine, placed

HOME = WorkerRef(WorkerId("decode-3"), Epoch(1), "plane:decode-3")


def cluster_of(decodes: int, **home: int) -> SchedulerMachine:
    """`home` is what decode-3 reports; the others are idle."""
    core = machine()
    core.handle(beat("prefill-0"), 0.0)
    for number in range(decodes):
        core.handle(beat(f"decode-{number}", **(home if number == 3 else {})), 0.0)  # type: ignore[arg-type]
    return core


def near(route: str = "auto") -> PlaceRequest:
    return replace(ask(route=route, tokens=3_000), near=HOME)


@pytest.mark.parametrize("route", ["auto", "disaggregated", "colocated"])
@pytest.mark.parametrize("decodes", [4, 40])
def test_it_goes_home_however_busy_home_is(route: str, decodes: int) -> None:
    found = placed(cluster_of(decodes, running=30), near(route), 0.5)
    assert (found.route, found.decode) == ("colocated", HOME)


def test_a_full_home_or_a_newer_incarnation_is_no_home() -> None:
    full = placed(cluster_of(5, pages_free=3), near(), 0.5)
    assert full.decode.worker != HOME.worker
    core = cluster_of(5)
    core.handle(beat("decode-3", epoch=2), 0.1)
    assert placed(core, near(), 0.5).route == "disaggregated"
    gone = placed(cluster_of(3), near(), 0.5)
    assert gone.route == "disaggregated"
