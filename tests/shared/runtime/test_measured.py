"""Measurements on their way to the scheduler."""

from __future__ import annotations

from shared.ids import WorkerId
from shared.runtime.measured import MOST, Measured
from shared.wire.workers import LinkSample, StepSample


def test_steps_are_told_as_the_cost_model_counts_them() -> None:
    measured = Measured()
    measured.step([(100, 50)], 0.1)
    measured.step([(1, 10), (1, 20)], 0.2)
    measured.step([(10, 0), (10, 0), (1, 7)], 0.3)
    measured.step([(1, 0)], 0.4)
    steps, links = measured.take()
    assert links == ()
    assert steps == (
        StepSample(100, 50, 0, 0, 0.1),
        StepSample(0, 0, 2, 30, 0.2),
        StepSample(20, 0, 1, 7, 0.3),
        StepSample(1, 0, 0, 0, 0.4),
    )
    assert measured.take() == ((), ())


def test_only_the_newest_few_are_kept() -> None:
    measured, peer = Measured(), WorkerId("prefill-0")
    for number in range(100):
        measured.step([(16, 0)], float(number))
        measured.read(peer, number, 1.0, 2.0 * number)
    steps, links = measured.take()
    assert [step.seconds for step in steps] == [float(n) for n in range(100 - MOST, 100)]
    assert links[-1] == LinkSample(peer, 99, 1.0) and len(links) == MOST
