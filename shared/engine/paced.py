"""The weightless engine at the pace of a real one: each step takes at least what a model says.

For benches and tests of policies on a live cluster, where speed must come from a number and not
from the machine. The tokens are those of `hashchain`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from shared.checkpoint.checkpoint import Checkpoint
from shared.costs import WorkCosts, mixed_s
from shared.engine.batch import StepItem, StepResult
from shared.engine.hashchain import HashchainEngine
from shared.errors import StartupError
from shared.kv.layout import PageLayout


@dataclass(frozen=True, slots=True)
class Pace:
    """What a step takes, in seconds."""

    costs: WorkCosts

    @staticmethod
    def parse(text: str) -> Pace:
        """'5,0.5,20,2': milliseconds of a prefill step, each of its tokens, a decode step, each
        further sequence in it. Raises StartupError."""
        try:
            step, token, decode, sequence = (float(part) / 1e3 for part in text.split(","))
        except ValueError:
            raise StartupError("pace must be four numbers, e.g. 5,0.5,20,2") from None
        if not all(math.isfinite(s) and 0.0 <= s < 60.0 for s in (step, token, decode, sequence)):
            raise StartupError("pace must be four numbers from 0 to 60000 milliseconds")
        return Pace(WorkCosts(step, token, 0.0, decode, sequence))

    def seconds(self, items: Sequence[StepItem]) -> float:
        """Single tokens decode, longer runs prefill."""
        decoding = sum(len(item.tokens) == 1 for item in items)
        tokens = sum(len(item.tokens) for item in items) - decoding
        return mixed_s(self.costs, tokens, 0, decoding)


class PacedEngine(HashchainEngine):
    """Sleeps for what is left of a step's time, in the engine's thread."""

    def __init__(self, checkpoint: Checkpoint, layout: PageLayout, pages: int, pace: Pace) -> None:
        super().__init__(checkpoint, layout, pages)
        self._pace = pace

    def step(self, items: Sequence[StepItem]) -> StepResult:
        started = time.perf_counter()
        result = super().step(items)
        left_s = self._pace.seconds(items) - (time.perf_counter() - started)
        if left_s > 0.0:
            time.sleep(left_s)
        return dataclasses.replace(result, seconds=time.perf_counter() - started)
