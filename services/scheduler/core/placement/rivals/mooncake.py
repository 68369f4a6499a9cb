"""Mooncake's conductor: compute where the prefix is, or copy it when others have far more of it.

Algorithm 1 of the paper (FAST 2025): when the longest match anywhere exceeds a worker's own by more
than a ratio, that worker is charged for copying and for the rest of the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from services.scheduler.core.cluster import Worker
from services.scheduler.core.placement.rivals.rule import Ranked
from services.scheduler.core.placement.view import View

THRESHOLD: Final = 2.0
"""Set by hand there too."""


class MooncakeConductor:
    """TTFT of each worker; the copy stays with it, which is how prefixes get replicated. The
    published rule copies first and then waits: it does not overlap the two."""

    name = "mooncake_conductor"

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        best = max(workers, key=view.cached)
        longest = view.cached(best)
        ranked = [self._judge(view, worker, best, longest) for worker in workers]
        return sorted(ranked, key=lambda entry: entry.value)

    def placed(self, view: View, worker: Worker) -> None:
        """Has no memory."""

    def _judge(self, view: View, worker: Worker, best: Worker, longest: int) -> Ranked:
        own = view.cached(worker)
        ratio = longest / own if own else math.inf
        wait_s = view.wait_s(worker)
        if longest > own and ratio > self._threshold:
            copy_s = view.transfer_s(worker, best, longest - own)
            depth = min(longest, view.cached_limit(worker))
            ttft_s = copy_s + wait_s + view.prefill_s(worker, depth)
            return Ranked(worker, ttft_s, f"{ttft_s:.4f} s with a copy", fetch_from=best)
        ttft_s = wait_s + view.prefill_s(worker, own)
        return Ranked(worker, ttft_s, f"{ttft_s:.4f} s with its own {own} blocks")
