"""What one worker, or one pair, would take for a request: the terms of every score.

    ttft_s     = max(wait_s, fetch_s) + prefill_s
    exposed_s  = x + (k-1) * max(0, x-y) for k chunks of compute y and transfer x, which delays
                 the second token alone: it counts `exposed_share` of its seconds, and whole where
                 the answer would miss its TPOT objective for it
    queue_s    = what it takes longer for what the cards of both have to carry besides, in the
                 same measure
    link_s     = what moving its bytes delays others, in the same measure
    later_s    = prefill_s times the price of prefill: the delay of later requests
    slowdown_s = what one more stream costs the streams that are there
    stall_s    = what computing the prompt beside them costs them, in the measure of exposed_s, if
                 they have half of this answer's slack left

(algorithms, section 3.1). Pure functions of a view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.scheduler.core.cards import IDLE, Backlog
from services.scheduler.core.cluster import Worker
from services.scheduler.core.flights import peak
from services.scheduler.core.placement.option import Fetch, Option
from services.scheduler.core.placement.view import View
from shared import costs


@dataclass(slots=True)
class Site:
    """A worker that would compute the prompt."""

    worker: Worker
    cached: int
    fetch: Fetch | None
    wait_s: float
    prefill_s: float
    """After the fetch, if there is one."""
    evict_s: float
    link_s: float
    """What a fetch costs others."""
    later_s: float = 0.0
    """What its work costs those that come later."""
    sending: Backlog = IDLE
    """What its card has to send."""
    ttft_s: float = 0.0
    """Wait or fetch, whichever is longer, and prefill."""

    @property
    def ready_blocks(self) -> int:
        """Blocks that need not be computed."""
        return self.cached + (self.fetch.blocks if self.fetch else 0)


@dataclass(slots=True)
class Source:
    """Who could lend blocks."""

    owner: Worker
    depth: int
    """Leading blocks of the request that it has."""
    sending: Backlog
    """What its card has to send."""

    def better(self, other: Source) -> bool:
        """Whether anybody might rather copy from here."""
        return self.depth > other.depth or self.sending.seconds < other.sending.seconds


def source(view: View, owner: Worker, depth: int) -> Source:
    """What does not depend on who borrows."""
    return Source(owner, depth, view.sending(owner.report.worker))


def site(view: View, worker: Worker, sources: list[Source]) -> Site:
    """The cheaper of computing what is missing and copying what `sources` have of it. A fetch
    begins when the job is accepted, so it overlaps the wait; the best prefix of it is nothing or
    everything, since what computing saves is concave (section 3.4)."""
    cached = view.cached(worker)
    wait_s = view.wait_s(worker)
    name, fetch, link_s = worker.report.worker, None, 0.0
    receiving = view.receiving(name)
    prefill_s = view.prefill_s(worker, cached)
    ttft_s = best_s = wait_s + prefill_s
    for lender in sources:
        blocks = lender.depth - cached
        if blocks <= 0 or not view.may_copy(worker, lender.owner):
            continue
        moving_s = view.transfer_s(worker, lender.owner, blocks)
        size_bytes = blocks * worker.report.page_bytes
        fetch_s = moving_s + _delay_s(lender.sending, receiving, size_bytes)
        left_s = view.prefill_s(worker, lender.depth)
        ready_s = max(wait_s, fetch_s) + left_s
        if ready_s >= best_s:
            continue
        others_s = view.link_price(name) * view.others * moving_s
        if ready_s + others_s < best_s:
            fetch, link_s, prefill_s = Fetch(lender.owner, blocks, fetch_s), others_s, left_s
            ttft_s, best_s = ready_s, ready_s + others_s
    return Site(
        worker,
        cached,
        fetch,
        wait_s,
        prefill_s,
        evict_s(view, worker, view.pages(worker) - cached),
        link_s,
        view.later_s(worker, wait_s, prefill_s),
        view.sending(name),
        ttft_s,
    )


def evict_s(view: View, worker: Worker, pages: int) -> float:
    """What the blocks that make room are expected to cost those who want them again."""
    load = worker.report.load
    listed, used = view.world.index.listed(worker.report.worker), load.pages_total - load.pages_free
    empty = load.pages_total - (listed if listed > used else used) - worker.charged_pages
    evicted = pages - empty if empty > 0 else pages
    if evicted <= 0:
        return 0.0
    coefficients = view.world.learned.costs(worker.report)
    block_s = coefficients.token_s * worker.report.block_tokens
    return evicted * view.world.index.ghosts.share * block_s * view.others


def slowdown_s(view: View, worker: Worker) -> float:
    """What one more stream costs all that are there."""
    return view.stream_s(worker) * worker.streams() * view.others


def spill_s(view: View, worker: Worker) -> float:
    """P(memory runs out) times the prompt that a victim then computes again (section 14)."""
    beat, load = worker.report, worker.report.load
    size = beat.block_tokens
    room = worker.pages_free() - view.pages(worker)
    ask = view.ask
    worst = view.world.flights.worst_tokens(beat.worker) + ask.max_tokens
    if worst <= room * size or load.pages_total == 0:
        return 0.0
    flights = view.world.flights.believed(beat.worker, worker.requests())
    left = [
        (
            max(1.0, min(f.expected_tokens, f.max_tokens) - f.out(view.now)),
            max(1.0, f.max_tokens - f.out(view.now)),
        )
        for f in flights
    ]
    likely = peak([(1.0, -(-few // size)) for few, _ in left])
    likely += -(-view.expected_tokens // size)
    most = peak([(1.0, -(-many // size)) for _, many in left]) + -(-ask.max_tokens // size)
    if likely <= room >= most:
        return 0.0
    risk = 1.0 if likely >= room else (most - room) / max(1.0, most - likely) * 0.5
    return min(1.0, risk) * view.prefill_s(worker, 0) * view.others


@dataclass(slots=True)
class Reader:
    """A decode worker that would take over what prefill computes."""

    worker: Worker
    burden: dict[str, float]
    missing: int
    """Pages of the prompt that it lacks ..."""
    size_bytes: int
    """... and what its card receives for them."""
    link_price: float
    receiving: Backlog
    """What its card has to receive."""
    slack_s: float
    """That its TPOT objective leaves this request until its answer is complete."""
    least_s: float
    """A bound: it costs at least this much with any prefill worker at the usual link speed."""


def reader(view: View, worker: Worker, burden: dict[str, float]) -> Reader:
    """What depends on the decode worker alone."""
    missing = view.pages(worker) - view.cached(worker)
    name = worker.report.worker
    price = view.link_price(name) * view.others * view.weights.exposed_share
    link = view.world.learned.links.of(name, view.now)
    size_bytes = missing * worker.report.page_bytes
    usual_s = costs.transfer_s(link, size_bytes)
    least_s = sum(burden.values()) + price * usual_s
    receiving, slack_s = view.receiving(name), view.slack_s(worker)
    return Reader(worker, burden, missing, size_bytes, price, receiving, slack_s, least_s)


def pair(view: View, at: Site, to: Reader) -> Option:
    """Prefill computes, decode pulls."""
    decode = to.worker
    transfer_s = view.transfer_s(decode, at.worker, to.missing)
    tokens = view.ask.prompt_tokens - at.ready_blocks * at.worker.report.block_tokens
    chunks = max(1, math.ceil(tokens / view.weights.chunk_tokens))
    computing_s = at.prefill_s / chunks
    delay_s = _delay_s(at.sending.after(at.ttft_s), to.receiving.after(at.ttft_s), to.size_bytes)
    alone_s = costs.exposed_s(computing_s, transfer_s / chunks, chunks)
    shared_s = costs.exposed_s(computing_s, (transfer_s + delay_s) / chunks, chunks)
    exposed_s = view.after_first_s(alone_s, to.slack_s)
    terms = {
        "wait_s": max(at.wait_s, at.fetch.seconds) if at.fetch else at.wait_s,
        "prefill_s": at.prefill_s,
        "exposed_s": exposed_s,
        "later_s": at.later_s,
        "evict_s": at.evict_s,
        "link_s": at.link_s + to.link_price * transfer_s,
        "queue_s": view.after_first_s(shared_s, to.slack_s) - exposed_s,
        **to.burden,
    }
    note = f"{at.cached} blocks cached on {at.worker.report.worker}"
    if at.fetch:
        note += f", {at.fetch.blocks} more from {at.fetch.owner.report.worker}"
    return Option(
        prefill=at.worker,
        decode=decode,
        cached_blocks=at.cached,
        ttft_s=terms["wait_s"] + at.prefill_s,
        work_s=at.prefill_s,
        score=sum(terms.values()),
        terms=terms,
        note=note,
        fetch=at.fetch,
        moved_bytes=to.size_bytes,
    )


def _delay_s(sending: Backlog, receiving: Backlog, size_bytes: int) -> float:
    """By how much what both cards carry delays a transfer of so many bytes: the busier one."""
    return max(sending.delay_s(size_bytes), receiving.delay_s(size_bytes))


def together(view: View, at: Site, burden: dict[str, float]) -> Option:
    """Decode computes the prompt itself, between the steps of its streams."""
    worker = at.worker
    stalled_s = view.after_first_s(_stalled_s(view, at), view.slack_s(worker) / 2)
    terms = {
        "wait_s": max(at.wait_s, at.fetch.seconds if at.fetch else 0.0),
        "prefill_s": at.prefill_s,
        "stall_s": stalled_s * worker.streams() * view.others,
        "evict_s": at.evict_s,
        "link_s": at.link_s,
        **burden,
    }
    if not view.prefills.workers:
        terms["later_s"] = at.later_s
    return Option(
        prefill=None,
        decode=worker,
        cached_blocks=at.cached,
        ttft_s=at.ttft_s,
        work_s=at.prefill_s,
        score=sum(terms.values()),
        terms=terms,
        note=f"{at.cached} blocks cached on decode {worker.report.worker}",
        fetch=at.fetch,
    )


def _stalled_s(view: View, at: Site) -> float:
    """By how much the steps that compute the prompt are longer than without it."""
    beat = at.worker.report
    left = view.ask.prompt_tokens - at.ready_blocks * beat.block_tokens
    steps = math.ceil(left / view.chunk_tokens(at.worker))
    plain_s = costs.decode_s(view.world.learned.costs(beat), at.worker.streams())
    return max(0.0, at.prefill_s - steps * plain_s)


def burden(view: View, decode: Worker) -> dict[str, float]:
    """What a decode worker's own streams suffer."""
    return {"slowdown_s": slowdown_s(view, decode), "spill_s": spill_s(view, decode)}
