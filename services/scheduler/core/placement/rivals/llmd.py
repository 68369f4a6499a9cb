"""llm-d's endpoint picker: weighted scores in [0, 1], a draw among the best.

Ratios, not seconds: a prefix of 90 % counts the same for 100 tokens and for 100,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.scheduler.core.cluster import Worker
from services.scheduler.core.placement.option import Chance
from services.scheduler.core.placement.rivals.rule import Ranked
from services.scheduler.core.placement.rivals.simple import by_lot
from services.scheduler.core.placement.view import View


@dataclass(frozen=True, slots=True)
class LlmdWeights:
    """Of the scorers."""

    prefix: float = 3.0
    queue: float = 2.0
    kv: float = 2.0
    load: float = 0.0


DEFAULTS: Final = LlmdWeights()
_LOAD_FULL: Final = 128


class LlmdScorers:
    """Sum of weight * score: share of the prompt that is cached, (max - queue)/(max - min),
    1 - kv use, and, where it has a weight, .5 falling to 0 at 128 waiting requests."""

    name = "llmd_scorers"

    def __init__(self, chance: Chance, weights: LlmdWeights = DEFAULTS) -> None:
        self._chance = chance
        self._weights = weights

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        queues = [worker.requests() for worker in workers]
        ranked = [self._judge(view, worker, min(queues), max(queues)) for worker in workers]
        return by_lot(ranked, self._chance)

    def placed(self, view: View, worker: Worker) -> None:
        """Has no memory."""

    def _judge(self, view: View, worker: Worker, least: int, most: int) -> Ranked:
        blocks = max(1, len(view.ask.block_hashes))
        prefix = view.cached(worker) / blocks
        waiting = worker.requests()
        queue = (most - waiting) / (most - least) if most > least else 1.0
        kv = 1.0 - worker.pages_used() / max(1, worker.report.load.pages_total)
        load = max(0.0, 0.5 * (1 - waiting / _LOAD_FULL))
        weights = self._weights
        total = (
            weights.prefix * prefix + weights.queue * queue + weights.kv * kv + weights.load * load
        )
        return Ranked(
            worker,
            -total,
            f"score {total:.3f} (prefix {prefix:.2f}, queue {queue:.2f}, kv {kv:.2f})",
        )
