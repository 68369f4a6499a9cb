"""The token budget that a start-up profile chooses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.checkpoint import open_checkpoint
from shared.checkpoint.geometry import page_layout
from shared.engine.batch import StepItem, StepResult
from shared.engine.hashchain import HashchainEngine
from shared.engine.profile import budget_rungs, choose_budget, measure_budget

from .sequences import BLOCK


class TimedEngine(HashchainEngine):
    """Says that a step takes 20 ms and 0.5 ms a token, as a device would."""

    def __init__(self, pages: int = 512) -> None:
        checkpoint = open_checkpoint("hashchain")
        super().__init__(checkpoint, page_layout(checkpoint, "float32", BLOCK), pages)
        self.steps: list[tuple[int, int]] = []

    def step(self, items: Sequence[StepItem]) -> StepResult:
        tokens = sum(len(item.tokens) for item in items)
        self.steps.append((tokens, len(items) - 1))
        return StepResult((), 0.020 + 0.0005 * tokens)


def test_rungs_are_tiles_and_begin_with_room_for_a_block_beside_the_decodes() -> None:
    assert budget_rungs(512, 24) == (64, 96, 128, 192, 256, 384, 512)
    assert budget_rungs(200, 80) == (80, 96, 128, 192)
    assert budget_rungs(48, 24) == (48,)


@pytest.mark.parametrize(
    ("target_s", "tokens", "kept"),
    [(0.020, 64, False), (0.06, 64, True), (0.1, 128, True), (0.2, 256, True), (9.0, 2048, True)],
)
def test_the_largest_budget_within_the_target(target_s: float, tokens: int, kept: bool) -> None:
    engine = TimedEngine()
    found = measure_budget(engine, BLOCK, 8, 2048, target_s)
    assert (found.tokens, found.kept) == (tokens, kept)
    assert found.seconds == pytest.approx(0.020 + 0.0005 * tokens)
    assert {decoding for _, decoding in engine.steps} == {8}
    assert all(total <= 2 * tokens for total, _ in engine.steps), "no look far beyond"


def test_a_memory_of_a_few_pages_is_enough_to_measure() -> None:
    found = measure_budget(TimedEngine(pages=2), BLOCK, 64, 2048, 1.0)
    assert found.tokens <= 2 * BLOCK


def test_a_noisy_rung_ends_the_search() -> None:
    seconds = {64: 0.01, 128: 0.5, 256: 0.02}
    assert choose_budget(seconds.__getitem__, (64, 128, 256), 0.1).tokens == 64
