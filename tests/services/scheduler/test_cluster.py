"""When the work of placements that no report has seen will be done."""

from __future__ import annotations

import pytest

from services.scheduler.core.cluster import Charge, Worker
from shared.ids import Attempt, RequestId
from tests.services.scheduler.builders import beat


def charge(sequence: int, placed_s: float) -> Charge:
    name = RequestId(f"r{sequence}")
    return Charge(sequence, name, Attempt(1), 0.3, 0, 99.0, fixed_s=0.1, placed_s=placed_s)


def test_who_waits_together_pays_the_fixed_part_of_a_step_once() -> None:
    worker = Worker(beat("prefill-0"), 0.0)
    worker.begin()
    worker.follow(charge(1, 1.0))
    assert worker.done_s == pytest.approx(1.3) and not worker.joins(1.1)
    worker.follow(charge(2, 1.1))
    assert worker.done_s == pytest.approx(1.6) and worker.joins(1.2), "waits for the first"
    worker.follow(charge(3, 1.2))
    assert worker.done_s == pytest.approx(1.8), "computed together with the second"
    assert not worker.joins(1.4), "their step runs"
    worker.follow(charge(4, 1.4))
    assert worker.done_s == pytest.approx(2.1)
