"""SGLang's cache-aware router: a match above a threshold decides, unless queues differ widely.

Its published form keeps a tree of what it sent where; here the exact index plays that part, so the
rule is judged at its best. The size of a worker's tree is the number of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.scheduler.core.cluster import Worker
from services.scheduler.core.placement.option import Chance
from services.scheduler.core.placement.rivals.rule import Ranked
from services.scheduler.core.placement.view import View

ABSOLUTE: Final = 64
RELATIVE: Final = 1.5
MATCH: Final = 0.3


class SglangCacheAware:
    """Imbalanced: shortest queue. Else a match of 30 % of the prompt: there. Else the smallest
    tree."""

    name = "sglang_cache_aware"

    def __init__(
        self,
        chance: Chance,
        absolute: int = ABSOLUTE,
        relative: float = RELATIVE,
        match: float = MATCH,
    ) -> None:
        self._chance = chance
        self._absolute = absolute
        self._relative = relative
        self._match = match

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        queues = [worker.requests() for worker in workers]
        longest, shortest = max(queues), min(queues)
        if longest - shortest > self._absolute and longest > self._relative * shortest:
            return self._by(workers, [float(queue) for queue in queues], "requests in flight")
        matches = [view.cached(w) * w.report.block_tokens for w in workers]
        if max(matches) >= self._match * view.ask.prompt_tokens:
            return self._by(workers, [-float(match) for match in matches], "tokens matched (neg.)")
        sizes = [float(view.world.index.listed(w.report.worker)) for w in workers]
        return self._by(workers, sizes, "blocks in its tree")

    def placed(self, view: View, worker: Worker) -> None:
        """Has no memory of its own: the index has it."""

    @staticmethod
    def _by(workers: Sequence[Worker], values: list[float], unit: str) -> list[Ranked]:
        ranked = [
            Ranked(worker, value, f"{value:g} {unit}")
            for worker, value in zip(workers, values, strict=True)
        ]
        return sorted(ranked, key=lambda entry: entry.value)
