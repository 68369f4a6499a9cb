"""What the gateway knows of the cluster for the pages: asked from the scheduler and the workers.

A look every few seconds keeps a short history; the rest is asked only while somebody looks, at
most once a second however many look. Nothing here is on the way of a request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from shared.bus.bus import Bus
from shared.bus.headers import Headers
from shared.clock import Clock
from shared.errors import BusError
from shared.ids import WorkerId
from shared.telemetry.metrics import Metrics
from shared.wire import subjects
from shared.wire.views import AskCluster, AskFigures, ClusterSeen, Figures, Sample, WorkerSeen

LOOK_S: Final = 5.0
FRESH_S: Final = 1.0
ANSWER_S: Final = 1.0
HISTORY: Final = 180
CHANGES: Final = 64
MOST_ASKED: Final = 64
"""Workers asked for their figures; the others are listed without."""
FIGURES: Final = (
    "baton_pages", "baton_leases", "baton_links", "baton_transfer_bytes_total",
    "baton_transfer_served_bytes_total", "baton_transfer_seconds",
    "baton_transfer_failures_total", "baton_fenced_total", "baton_checksum_failures_total",
    "baton_leaked_pages", "baton_preemptions_total", "baton_pool_bytes",
    "baton_pool_hit_tokens_total", "baton_pool_lookups_total", "baton_spans_dropped_total",
    "baton_pool_evictions_total", "baton_pool_unused_evictions_total",
    "baton_sequences_parked", "baton_role_flips_total", "baton_role_flip_running",
    "baton_workers_wanted", "baton_slo_attainment",
)  # fmt: skip
OWN_FIGURES: Final = (
    "baton_requests_running", "baton_streams_open", "baton_admit_waiting_tokens",
    "baton_requests_total", "baton_refusals_total", "baton_generated_tokens_total",
    "baton_prompt_tokens_total", "baton_ttft_seconds", "baton_tpot_seconds",
    "baton_attempts_total", "baton_cancels_total", "baton_spans_dropped_total",
    "baton_trace_store_bytes", "baton_loop_lag_seconds",
)  # fmt: skip
_CHARTED: Final = (
    "baton_requests_running", "baton_requests_total", "baton_generated_tokens_total",
    "baton_ttft_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """Something about a worker that was not so before."""

    at_ms: int
    worker: str
    role: str
    what: str


class ClusterWatch:
    """`run` looks now and then; `cluster` and `prefixes` answer a page."""

    def __init__(self, bus: Bus, clock: Clock, metrics: Metrics) -> None:
        self._bus = bus
        self._clock = clock
        self._metrics = metrics
        self._seen: ClusterSeen | None = None
        self._problem = "nobody was asked yet"
        self._figures: dict[WorkerId, tuple[Sample, ...]] = {}
        self._history: deque[dict[str, float]] = deque(maxlen=HISTORY)
        self._changes: deque[Change] = deque(maxlen=CHANGES)
        self._deep_s = float("-inf")
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """For ever."""
        while True:
            async with self._turn:
                await self._look(0)
            self._history.append(self._point())
            await asyncio.sleep(LOOK_S)

    async def cluster(self) -> dict[str, Any]:
        """Everything about everybody, at most a second old."""
        async with self._turn:
            await self._refresh()
        seen = self._seen
        own = self._metrics.samples(OWN_FIGURES, 512)
        return {
            "at_ms": self._unix_ms(),
            "problem": self._problem,
            "scheduler": seen and {"leader": seen.leader, "epoch": seen.leader_epoch},
            "workers": [self._shown(worker) for worker in seen.workers] if seen else [],
            "more_workers": seen.more_workers if seen else 0,
            "index": seen and {"blocks": seen.index_blocks, "bytes": seen.index_bytes},
            "leader_figures": _plain(self._figures.get(seen.leader, ())) if seen else [],
            "gateway": [{"name": n, "labels": dict(ls), "value": v} for n, ls, v in own],
            "changes": [asdict(change) for change in reversed(self._changes)],
            "history": list(self._history),
        }

    async def workers(self) -> list[tuple[WorkerSeen, tuple[Sample, ...]]]:
        """All workers with their figures, at most a second old."""
        async with self._turn:
            await self._refresh()
        workers = self._seen.workers if self._seen else ()
        return [(worker, self._figures.get(worker.worker, ())) for worker in workers]

    async def prefixes(self, most: int) -> dict[str, Any]:
        """The hottest prefixes, and who holds them."""
        async with self._turn:
            await self._look(most)
        seen = self._seen
        return {
            "at_ms": self._unix_ms(),
            "problem": self._problem,
            "block_tokens": max((w.block_tokens for w in seen.workers), default=0) if seen else 0,
            "index": seen and {"blocks": seen.index_blocks, "bytes": seen.index_bytes},
            "prefixes": [asdict(prefix) for prefix in seen.prefixes] if seen else [],
        }

    def worker(self, name: str) -> WorkerSeen | None:
        """As last seen."""
        workers = self._seen.workers if self._seen else ()
        return next((worker for worker in workers if worker.worker == name), None)

    # -- inside ----------------------------------------------------------------------------

    async def _refresh(self) -> None:
        if self._clock.now() - self._deep_s > FRESH_S:
            await self._look(0)
            await self._ask_figures()
            self._deep_s = self._clock.now()

    async def _look(self, prefixes: int) -> None:
        try:
            ask = AskCluster(prefixes)
            reply = await self._bus.request(subjects.CLUSTER, ask, Headers(), ANSWER_S)
        except BusError:
            self._problem = "no scheduler answers" if self._bus.connected else "the bus is down"
            return
        if not isinstance(reply, ClusterSeen):
            self._problem = "the scheduler answers with something else"
            return
        if self._seen is not None:
            self._changes.extend(_changes(self._seen, reply, self._unix_ms()))
        self._seen, self._problem = reply, ""

    async def _ask_figures(self) -> None:
        """All at once, each under its own deadline; who does not answer has none."""
        seen = self._seen
        if seen is None:
            return
        asked = [(worker.role, worker.worker) for worker in seen.workers[:MOST_ASKED]]
        asked.append(("scheduler", seen.leader))
        found = await asyncio.gather(*(self._figures_of(role, name) for role, name in asked))
        self._figures = {
            name: samples
            for (_, name), samples in zip(asked, found, strict=True)
            if samples is not None
        }

    async def _figures_of(self, role: str, name: WorkerId) -> tuple[Sample, ...] | None:
        try:
            subject = subjects.figures(role, name)
            reply = await self._bus.request(subject, AskFigures(FIGURES), Headers(), ANSWER_S)
        except BusError:
            return None
        return reply.samples if isinstance(reply, Figures) else None

    def _shown(self, worker: WorkerSeen) -> dict[str, Any]:
        samples = self._figures.get(worker.worker)
        return {**asdict(worker), "figures": None if samples is None else _plain(samples)}

    def _point(self) -> dict[str, float]:
        """One point of the charts. Totals are cumulative: the page takes differences."""
        totals: defaultdict[str, float] = defaultdict(float)
        for name, _, value in self._metrics.samples(_CHARTED, 512):
            totals[name] += value
        workers = self._seen.workers if self._seen and not self._problem else ()
        loads = [worker.load for worker in workers]
        total = sum(load.pages_total for load in loads)
        return {
            "at_ms": self._unix_ms(),
            "running": totals["baton_requests_running"],
            "queued": float(sum(load.queued_requests for load in loads)),
            "requests": totals["baton_requests_total"],
            "tokens": totals["baton_generated_tokens_total"],
            "ttft_sum_s": totals["baton_ttft_seconds_sum"],
            "ttft_count": totals["baton_ttft_seconds_count"],
            "pages_used": 1 - sum(load.pages_free for load in loads) / total if total else 0.0,
        }

    def _unix_ms(self) -> int:
        return self._clock.unix_ns(self._clock.now()) // 1_000_000


def _plain(samples: tuple[Sample, ...]) -> list[Mapping[str, Any]]:
    return [asdict(sample) for sample in samples]


def _changes(before: ClusterSeen, after: ClusterSeen, at_ms: int) -> list[Change]:
    """Who came, went, began anew, changed its state or its role."""
    old = {worker.worker: worker for worker in before.workers}
    new = {worker.worker: worker for worker in after.workers}
    found: list[Change] = []
    for name, worker in new.items():
        known = old.get(name)
        if known is None:
            found.append(Change(at_ms, name, worker.role, "joined"))
        elif known.role != worker.role:
            found.append(Change(at_ms, name, worker.role, f"serves {worker.role}"))
        elif known.epoch != worker.epoch:
            found.append(Change(at_ms, name, worker.role, f"began epoch {worker.epoch}"))
        elif known.state != worker.state:
            found.append(Change(at_ms, name, worker.role, f"is {worker.state}"))
    gone = [worker for name, worker in old.items() if name not in new]
    found += [Change(at_ms, worker.worker, worker.role, "is gone") for worker in gone]
    if before.leader != after.leader:
        found.append(Change(at_ms, after.leader, "scheduler", "leads"))
    return found
