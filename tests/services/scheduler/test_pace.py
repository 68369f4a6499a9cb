"""Rates that are right from the first second on."""

from __future__ import annotations

import pytest

from services.scheduler.core.pace import Pace, Paces
from shared.ids import WorkerId

ONE, TWO = WorkerId("prefill-1"), WorkerId("prefill-2")


@pytest.mark.parametrize("seconds", [2, 10, 100])
def test_a_steady_stream_has_its_rate_however_long_it_runs(seconds: int) -> None:
    pace = Pace(10.0)
    for number in range(seconds * 10):
        pace.add(0.02, number / 10)
    assert pace.per_s(seconds - 0.1) == pytest.approx(10.0, rel=0.1)
    assert pace.busy(seconds - 0.1) == pytest.approx(0.2, rel=0.1)


def test_a_burst_of_an_instant_is_no_endless_stream() -> None:
    pace = Pace(10.0)
    assert pace.per_s(1.0) == pace.busy(1.0) == 0.0
    pace.add(1.0, 1.0)
    assert pace.per_s(1.0) == pytest.approx(2.0)
    assert pace.per_s(1000.0) < 1e-9


def test_workers_have_paces_of_their_own() -> None:
    paces = Paces(10.0)
    paces.add(ONE, 0.5, 0.0)
    assert paces.per_s(ONE, 0.0) > 0.0 and paces.busy(ONE, 0.0) > 0.0
    assert paces.per_s(TWO, 0.0) == paces.busy(TWO, 0.0) == 0.0
