"""The scheduler's figures (interfaces: group 'scheduler')."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from services.scheduler.core.leadership import StepBack, TakeLead
from services.scheduler.core.machine import SchedulerMachine
from shared.telemetry.metrics import Metrics
from shared.wire.requests import Placement, Refused
from shared.wire.workers import WorkerLost


class SchedulerMetrics:
    """Counts what happens; reads the core's state when told to."""

    def __init__(self, metrics: Metrics) -> None:
        counter, gauge = metrics.counter, metrics.gauge
        self._placements = counter(
            "baton_placements_total", "Placement requests answered.", ("route", "reason")
        )
        self._seconds = metrics.histogram("baton_placement_seconds", "Time of one decision.")
        self._workers = gauge("baton_workers", "Processes heard.", ("role", "state"))
        self._lost = counter(
            "baton_workers_lost_total", "Incarnations declared dead.", ("role", "cause")
        )
        self._leader = gauge("baton_leader", "1 while this process leads.")
        self._turns = counter(
            "baton_leader_turns_total", "Times it took or lost the lead.", ("to",)
        )
        self._index = gauge("baton_index_blocks", "Distinct blocks in the prefix index.")
        self._resyncs = counter(
            "baton_index_resyncs_total", "Snapshots begun, by what made them necessary.", ("cause",)
        )
        self._assumed = gauge(
            "baton_assumed_tokens", "Prompt tokens placed but not yet reported.", ("worker",)
        )
        self._assumed_s = gauge(
            "baton_assumed_seconds", "The same as seconds of work.", ("worker",)
        )
        self._retries = gauge("baton_retries", "Tries after a failure within the window.")
        self._retries_refused = counter(
            "baton_retries_refused_total", "Tries after a failure that were put off."
        )
        self._kept_out = gauge("baton_poison_kept_out", "Prompts that killed two workers.")
        self._fenced = counter("baton_fenced_total", "Refused as outdated.", ("by",))
        self._shown: Counter[tuple[str, str]] = Counter()
        self.refused = counter(
            "baton_scheduler_refused_messages_total", "Messages of a type not expected there."
        )

    def placed(self, reply: Placement | Refused, seconds: float) -> None:
        """Count one answer."""
        self._seconds.observe(seconds)
        if isinstance(reply, Placement):
            self._placements.labels(reply.route, "placed").inc()
        else:
            self._placements.labels("none", reply.code).inc()

    def turned(self, turn: TakeLead | StepBack) -> None:
        """Count a change of who we are."""
        self._turns.labels("lead" if isinstance(turn, TakeLead) else turn.cause).inc()

    def declared(self, lost: WorkerLost) -> None:
        self._lost.labels(lost.role, lost.cause).inc()

    def show(self, core: SchedulerMachine, now: float, *, leading: bool) -> None:
        """Read the core's figures."""
        self._leader.set(leading)
        self._index.set(core.index.blocks)
        self._kept_out.set(core.poison.kept_out)
        self._retries.set(core.retries.retries(now))
        for cause, count in core.index.resyncs.items():
            self._grow(("resyncs", cause), count, self._resyncs.labels(cause).inc)
        stale, refused = core.counts["stale_heartbeats"], core.index.refused
        self._grow(("fenced", "epoch"), stale, self._fenced.labels("epoch").inc)
        self._grow(("fenced", "event"), refused, self._fenced.labels("block_event").inc)
        self._grow(("retries", ""), core.counts["retries_refused"], self._retries_refused.inc)
        states = Counter((w.report.role, w.report.state) for w in core.cluster)
        self._workers.clear()
        self._assumed.clear()
        self._assumed_s.clear()
        for (role, state), count in states.items():
            self._workers.labels(role, state).set(count)
        for worker in core.cluster:
            charges = worker.charges.values()
            name = worker.report.worker
            self._assumed.labels(name).set(sum(charge.tokens for charge in charges))
            self._assumed_s.labels(name).set(sum(charge.work_s for charge in charges))

    def _grow(self, key: tuple[str, str], count: int, add: Callable[[float], None]) -> None:
        """Bring a counter up to the core's count."""
        if count > self._shown[key]:
            add(count - self._shown[key])
            self._shown[key] = count
