"""Preble's E2, as published (ICLR 2025): exploit a long match, else explore; cost = L + M + P.

L counts all work placed in a window of three minutes, done or not; M what eviction would cost those
who share the evicted blocks; P the request's own prefill. Three refinements of the paper are flags.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from services.scheduler.core.cluster import Worker
from services.scheduler.core.placement.rivals.rule import Ranked
from services.scheduler.core.placement.view import View
from shared.ids import BlockHash, WorkerId

WINDOW_S: Final = 180.0
IMBALANCE: Final = 1.5
DECODE_RATIO: Final = 0.8
"""Above it a worker counts as decode-heavy; set by hand."""
_MOST_PREFIXES: Final = 16_384


@dataclass(frozen=True, slots=True)
class PrebleFlags:
    """The paper's ablation."""

    rebalance: bool = True
    replicate: bool = True
    pd_aware: bool = True


@dataclass(slots=True)
class _Window:
    """What was placed on one worker lately."""

    jobs: deque[tuple[float, float, float]] = field(default_factory=deque)
    """(when, prefill seconds, decode seconds)"""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    blocks: OrderedDict[BlockHash, int] = field(default_factory=OrderedDict)
    """Least recently used first, with how many requests used each."""

    def forget(self, before: float) -> None:
        while self.jobs and self.jobs[0][0] < before:
            _, prefill_s, decode_s = self.jobs.popleft()
            self.prefill_s -= prefill_s
            self.decode_s -= decode_s
        if not self.jobs:
            self.prefill_s = self.decode_s = 0.0

    @property
    def decode_ratio(self) -> float:
        total = self.prefill_s + self.decode_s
        return self.decode_s / total if total > 0 else 0.0


@dataclass(slots=True)
class _Queueing:
    """Mean wait of a prefix's requests, in this window and the one before."""

    since_s: float
    before_s: float = 0.0
    sum_s: float = 0.0
    count: int = 0

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count if self.count else 0.0


class PrebleE2:
    """Exploit-explore with a memory of its own."""

    name = "preble_e2"

    def __init__(self, flags: PrebleFlags | None = None) -> None:
        self._flags = flags or PrebleFlags()
        self._windows: OrderedDict[WorkerId, _Window] = OrderedDict()
        self._queueing: OrderedDict[BlockHash, _Queueing] = OrderedDict()

    def rank(self, view: View, workers: Sequence[Worker]) -> list[Ranked]:
        costs = [self.cost(view, worker) for worker in workers]
        ranked = [
            Ranked(worker, cost, f"cost {cost:.3f} s")
            for worker, cost in zip(workers, costs, strict=True)
        ]
        ranked.sort(key=lambda entry: entry.value)
        chosen = self._choose(view, ranked)
        return [chosen, *(entry for entry in ranked if entry is not chosen)]

    def cost(self, view: View, worker: Worker) -> float:
        """L + M + P, in seconds."""
        window = self._window(worker)
        window.forget(view.now - WINDOW_S)
        own_s = view.prefill_s(worker, view.cached(worker))
        return window.prefill_s + window.decode_s + self._evicted_s(view, worker, window) + own_s

    def placed(self, view: View, worker: Worker) -> None:
        """The request joins the worker's window, and its prefix's queueing."""
        window = self._window(worker)
        prefill_s = view.prefill_s(worker, view.cached(worker))
        decode_s = view.expected_tokens * view.step_s(worker, 1, view.ask.prompt_tokens)
        window.jobs.append((view.now, prefill_s, decode_s))
        window.prefill_s += prefill_s
        window.decode_s += decode_s
        for block in view.ask.block_hashes:
            window.blocks[block] = window.blocks.pop(block, 0) + 1
        while len(window.blocks) > max(1, worker.report.load.pages_total):
            window.blocks.popitem(last=False)
        self._queue(view, worker)

    # -- inside ------------------------------------------------------------------------------

    def _choose(self, view: View, ranked: list[Ranked]) -> Ranked:
        matches = {id(entry): view.cached(entry.worker) for entry in ranked}
        longest = max(matches.values())
        size = ranked[0].worker.report.block_tokens
        cached = longest * size
        if longest and view.ask.prompt_tokens - cached < cached:
            holders = [entry for entry in ranked if matches[id(entry)] == longest]
            if self._flags.replicate and len(holders) == 1 and self._doubled(view):
                others = [entry for entry in ranked if entry is not holders[0]]
                if others:
                    others[0].note += ", replicates: queueing has doubled"
                    return others[0]
            chosen, heavy, light = holders[0], ranked[-1], ranked[0]
            unbalanced = heavy.value > IMBALANCE * light.value
            if self._flags.rebalance and chosen is heavy and unbalanced:
                light.note += ", rebalances"
                return light
            chosen.note += ", exploits"
            return chosen
        if self._flags.pd_aware:
            ratios = {id(e): self._window(e.worker).decode_ratio for e in ranked}
            decoding = max(ranked, key=lambda entry: ratios[id(entry)])
            if ratios[id(decoding)] > DECODE_RATIO:
                decoding.note += ", explores the decode-heavy one"
                return decoding
        ranked[0].note += ", explores"
        return ranked[0]

    def _evicted_s(self, view: View, worker: Worker, window: _Window) -> float:
        """M: each block that a least-recently-used cache of this size would drop, times the share
        of the worker's requests that use it."""
        total = worker.report.load.pages_total
        evicted = len(window.blocks) + view.pages(worker) - view.cached(worker) - total
        if evicted <= 0 or not window.jobs:
            return 0.0
        coefficients = view.world.learned.costs(worker.report)
        block_s = coefficients.token_s * worker.report.block_tokens
        shares = 0
        for _, uses in zip(range(evicted), window.blocks.values(), strict=False):
            shares += uses
        return block_s * shares / len(window.jobs)

    def _queue(self, view: View, worker: Worker) -> None:
        if not view.ask.block_hashes:
            return
        start = view.ask.block_hashes[0]
        known = self._queueing.get(start)
        if known is None:
            known = self._queueing[start] = _Queueing(view.now)
        elif view.now - known.since_s > WINDOW_S:
            known = self._queueing[start] = _Queueing(view.now, known.mean_s)
        self._queueing.move_to_end(start)
        known.sum_s += view.wait_s(worker)
        known.count += 1
        while len(self._queueing) > _MOST_PREFIXES:
            self._queueing.popitem(last=False)

    def _doubled(self, view: View) -> bool:
        known = self._queueing.get(view.ask.block_hashes[0])
        return known is not None and known.before_s > 0 and known.mean_s > 2 * known.before_s

    def _window(self, worker: Worker) -> _Window:
        name = worker.report.worker
        known = self._windows.get(name)
        if known is None:
            known = self._windows[name] = _Window()
            while len(self._windows) > 8192:
                self._windows.popitem(last=False)
        return known
