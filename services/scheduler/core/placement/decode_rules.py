"""Who decodes what prefill computes, one function a rule; each gets workers with room.

Ties go to the first in the order of names, but for `round_robin`, which remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from services.scheduler.core.cluster import Worker
from services.scheduler.core.flights import peak
from services.scheduler.core.placement.estimates import burden
from services.scheduler.core.placement.view import View

DecodeRule = Callable[[View, Sequence[Worker]], Worker]


def round_robin() -> DecodeRule:
    """One after the other."""
    turn = -1

    def choose(view: View, workers: Sequence[Worker]) -> Worker:
        nonlocal turn
        turn += 1
        return workers[turn % len(workers)]

    return choose


def least_requests(view: View, workers: Sequence[Worker]) -> Worker:
    """Fewest requests waiting, running or on their way."""
    return min(workers, key=lambda worker: worker.requests())


def least_pages(view: View, workers: Sequence[Worker]) -> Worker:
    """Smallest share of pages in use."""
    return min(workers, key=lambda worker: worker.pages_used() / max(1, _total(worker)))


def dynamo_blocks(view: View, workers: Sequence[Worker]) -> Worker:
    """Fewest active blocks once this request is there, its cached ones counted once (Dynamo)."""
    return min(
        workers, key=lambda w: w.pages_used() + view.pages(w) - min(view.cached(w), view.pages(w))
    )


def llmd_kv(view: View, workers: Sequence[Worker]) -> Worker:
    """Highest 1 - kv use, less half a point a queued request share (llm-d's kv and queue
    scorers)."""
    longest = max(1, max(worker.report.load.queued_requests for worker in workers))

    def score(worker: Worker) -> float:
        free = 1.0 - worker.pages_used() / max(1, _total(worker))
        return free + 0.5 * (1.0 - worker.report.load.queued_requests / longest)

    return max(workers, key=score)


def mooncake_load(view: View, workers: Sequence[Worker]) -> Worker:
    """Shortest predicted time between tokens (Mooncake)."""
    return min(workers, key=view.joined_step_s)


def lightllm_peak(view: View, workers: Sequence[Worker]) -> Worker:
    """Smallest future peak over capacity (LightLLM)."""

    def share(worker: Worker) -> float:
        beat = worker.report
        members = [
            (f.prompt_tokens + f.out(view.now), max(0.0, f.expected_tokens - f.out(view.now)))
            for f in view.world.flights.believed(beat.worker, worker.streams())
        ]
        members.append((view.ask.prompt_tokens + 1.0, float(view.expected_tokens)))
        return peak(members) / max(1, _total(worker) * beat.block_tokens)

    return min(workers, key=share)


def baton_headroom(view: View, workers: Sequence[Worker]) -> Worker:
    """Least added delay: slowdown of its streams, the risk that memory runs out, and what its
    card has to receive first."""
    share = view.weights.exposed_share

    def added_s(worker: Worker) -> float:
        size_bytes = (view.pages(worker) - view.cached(worker)) * worker.report.page_bytes
        card_s = view.receiving(worker.report.worker).delay_s(size_bytes)
        return sum(burden(view, worker).values()) + share * card_s

    return min(workers, key=added_s)


def _total(worker: Worker) -> int:
    return worker.report.load.pages_total


PLAIN: Final[dict[str, DecodeRule]] = {
    "least_requests": least_requests,
    "least_pages": least_pages,
    "dynamo_blocks": dynamo_blocks,
    "llmd_kv": llmd_kv,
    "mooncake_load": mooncake_load,
    "lightllm_peak": lightllm_peak,
    "baton_headroom": baton_headroom,
}
NAMES: Final = ("round_robin", *PLAIN)


def decode_rule(name: str) -> DecodeRule:
    """A rule by its name. Raises KeyError for one that is not in NAMES."""
    return round_robin() if name == "round_robin" else PLAIN[name]
