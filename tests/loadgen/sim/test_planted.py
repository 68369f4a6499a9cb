"""The search finds what it is there for: three planted bugs, each within 200 seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadgen.sim.drawing import draw
from loadgen.sim.search import run
from tests.loadgen.sim import planted

SEEDS = 200
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    ("plant", "rules"),
    [
        (planted.free_before_drain, {"I2", "I6"}),
        (planted.generation_check_off, {"I3", "I4", "core_raised"}),
        (planted.double_commit, {"I5", "I6", "core_raised"}),
    ],
)
def test_a_planted_bug_is_found(
    plant: Plant, rules: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        violation = run(draw(seed)).violation
        if violation is not None and violation.rule in rules:
            return
    pytest.fail(f"not found within {SEEDS} seeds")
