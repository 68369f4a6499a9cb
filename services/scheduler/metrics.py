"""The scheduler's figures (interfaces: group 'scheduler')."""

from __future__ import annotations

from collections import Counter

from services.scheduler.core.machine import SchedulerMachine
from shared.telemetry.metrics import Metrics
from shared.wire.requests import Placement, Refused


class SchedulerMetrics:
    """Counts placements as they are made; reads the core's state when told to."""

    def __init__(self, metrics: Metrics) -> None:
        self._placements = metrics.counter(
            "baton_placements_total", "Placement requests answered.", ("route", "reason")
        )
        self._seconds = metrics.histogram("baton_placement_seconds", "Time of one decision.")
        self._workers = metrics.gauge("baton_workers", "Workers heard.", ("role", "state"))
        self._index = metrics.gauge("baton_index_blocks", "Distinct blocks in the prefix index.")
        self._resyncs = metrics.gauge("baton_index_resyncs", "Snapshots begun since the start.")
        self._assumed = metrics.gauge(
            "baton_assumed_seconds", "Work charged but not confirmed.", ("worker",)
        )
        self.refused = metrics.counter(
            "baton_scheduler_refused_messages_total", "Messages of a type not expected there."
        )

    def placed(self, reply: Placement | Refused, seconds: float) -> None:
        """Count one answer."""
        self._seconds.observe(seconds)
        if isinstance(reply, Placement):
            self._placements.labels(reply.route, "placed").inc()
        else:
            self._placements.labels("none", reply.code).inc()

    def show(self, core: SchedulerMachine) -> None:
        """Read gauges from the core."""
        self._index.set(core.index.blocks)
        self._resyncs.set(core.index.resyncs)
        states = Counter((w.report.role, w.report.state) for w in core.cluster)
        self._workers.clear()
        self._assumed.clear()
        for (role, state), count in states.items():
            self._workers.labels(role, state).set(count)
        for worker in core.cluster:
            charged_s = sum(charge.work_s for charge in worker.charges.values())
            self._assumed.labels(worker.report.worker).set(charged_s)
