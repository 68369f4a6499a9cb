"""When a request may stay on decode, under the route 'auto'. One function a rule.

Each gives offers in the order in which they are tried; the first in which something fits is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.scheduler.core.placement.option import Offer
from services.scheduler.core.placement.view import View

PAIRS: Final = Offer(prefill=True)
TOGETHER: Final = Offer(prefill=False, colocated=True)
EITHER: Final = Offer(prefill=True, colocated=True)

Split = Callable[[View, int], tuple[Offer, ...]]


def never(view: View, below: int) -> tuple[Offer, ...]:
    """Decode computes every prompt itself."""
    return TOGETHER, PAIRS


def always(view: View, below: int) -> tuple[Offer, ...]:
    """Prefill computes every prompt."""
    return PAIRS, TOGETHER


def uncached_threshold(view: View, below: int) -> tuple[Offer, ...]:
    """Stay where decode's cache leaves fewer than `below` tokens (llm-d, vLLM)."""
    return Offer(prefill=False, colocated=True, most_left=below), PAIRS, TOGETHER


def dynamo_isl(view: View, below: int) -> tuple[Offer, ...]:
    """Stay with fewer than 2,048 uncached tokens that are less than 70 % of the prompt (Dynamo).
    `below` plays no part."""
    workers = view.decodes.workers
    cached = max((view.cached(w) * w.report.block_tokens for w in workers), default=0)
    left = view.ask.prompt_tokens - cached
    stays = left < 2048 and left < 0.7 * view.ask.prompt_tokens
    return (TOGETHER, PAIRS) if stays else (PAIRS, TOGETHER)


def prefill_busy(view: View, below: int) -> tuple[Offer, ...]:
    """Stay while every prefill worker has something to do (Dynamo's `prefill_load`)."""
    busy = all(view.wait_s(worker) > 0.0 for worker in view.prefills.workers)
    return (TOGETHER, PAIRS) if busy else (PAIRS, TOGETHER)


def baton_cost(view: View, below: int) -> tuple[Offer, ...]:
    """Both compete by their cost (algorithms, section 3.5)."""
    return (EITHER,)


SPLITS: Final[dict[str, Split]] = {
    "uncached_threshold": uncached_threshold,
    "baton_cost": baton_cost,
    "never": never,
    "always": always,
    "dynamo_isl": dynamo_isl,
    "prefill_busy": prefill_busy,
}


def offers(view: View, split: Split, below: int) -> tuple[Offer, ...]:
    """What the request's own route allows; where its pages are already, first."""
    near = view.ask.near
    first = () if near is None else (Offer(prefill=False, colocated=True, only=near),)
    match view.ask.route:
        case "colocated":
            return (*first, TOGETHER)
        case "disaggregated":
            return (*first, PAIRS)
        case _:
            return (*first, *split(view, below))
