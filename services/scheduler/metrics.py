"""The scheduler's figures (interfaces: group 'scheduler')."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from services.scheduler.core.balance.balance import Balance
from services.scheduler.core.leadership import StepBack, TakeLead
from services.scheduler.core.machine import SchedulerMachine
from shared.telemetry.metrics import Metrics
from shared.wire.requests import Placement, PlacementEnded, Refused
from shared.wire.workers import WorkerLost

_OBJECTIVES: Final = {"good": "all", "ttft_met": "ttft", "tpot_met": "tpot"}
_ESTIMATES: Final = 4096
"""Placements whose first token is still to come; older ones are not compared."""


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
        self._index_bytes = gauge("baton_index_bytes", "Memory of the prefix index, estimated.")
        self._gaps = counter(
            "baton_bus_gaps_total", "Gaps in the numbers of block events: messages were lost."
        )
        self._errors = metrics.histogram(
            "baton_ttft_estimate_error_seconds", "Estimated against seen time to first token."
        )
        self._estimates: OrderedDict[tuple[str, int], float] = OrderedDict()
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
        self._wanted = gauge(
            "baton_workers_wanted",
            "Workers that the present load would need to keep its objectives: advice to scale.",
            ("role",),
        )
        self._attainment = gauge(
            "baton_slo_attainment",
            "Share of the requests of the planner's window that met an objective.",
            ("objective",),
        )
        self._proposals = counter(
            "baton_planner_proposals_total", "Changes of roles that would serve better."
        )
        self._flips = counter("baton_role_flips_total", "Changes of roles.", ("to", "outcome"))
        self._flipping = gauge("baton_role_flip_running", "1 while a worker changes its role.")
        self._shown: Counter[tuple[str, str]] = Counter()
        self.refused = counter(
            "baton_scheduler_refused_messages_total", "Messages of a type not expected there."
        )

    def placed(self, reply: Placement | Refused, seconds: float) -> None:
        """Count one answer."""
        self._seconds.observe(seconds)
        if isinstance(reply, Placement):
            self._placements.labels(reply.route, "placed").inc()
            self._estimates[reply.request, reply.attempt] = reply.estimated_ttft_s
            while len(self._estimates) > _ESTIMATES:
                self._estimates.popitem(last=False)
        else:
            self._placements.labels("none", reply.code).inc()

    def ended(self, event: PlacementEnded) -> None:
        """Compare what was promised with what the gateway saw, if it saw a token."""
        estimated_s = self._estimates.pop((event.request, event.attempt), None)
        if estimated_s is not None and event.ttft_s > 0:
            self._errors.observe(abs(estimated_s - event.ttft_s))

    def turned(self, turn: TakeLead | StepBack) -> None:
        """Count a change of who we are."""
        self._turns.labels("lead" if isinstance(turn, TakeLead) else turn.cause).inc()

    def declared(self, lost: WorkerLost) -> None:
        self._lost.labels(lost.role, lost.cause).inc()

    def show(self, core: SchedulerMachine, now: float, *, leading: bool) -> None:
        """Read the core's figures."""
        self._leader.set(leading)
        self._index.set(core.index.blocks)
        self._index_bytes.set(core.index.size_bytes)
        self._grow(("gaps", ""), core.index.resyncs["gap"], self._gaps.inc)
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

        self._show_balance(core.balance)

    def _show_balance(self, balance: Balance) -> None:
        """The sums over all models; shares of all their requests together."""
        self._wanted.clear()
        self._attainment.clear()
        looks = balance.looks.values()
        for role in ("prefill", "decode"):
            if looks:
                self._wanted.labels(role).set(sum(look.wanted[role] for look in looks))
        ended = sum(look.seen.kept.ended for look in looks)
        if ended:
            for name in ("good", "ttft_met", "tpot_met"):
                met = sum(getattr(look.seen.kept, name) for look in looks)
                self._attainment.labels(_OBJECTIVES[name]).set(met / ended)
        self._flipping.set(balance.flips.current is not None)
        self._grow(("proposals", ""), balance.proposed, self._proposals.inc)
        for (role, outcome), count in balance.flips.counts.items():
            self._grow(("flips", f"{role} {outcome}"), count, self._flips.labels(role, outcome).inc)

    def _grow(self, key: tuple[str, str], count: int, add: Callable[[float], None]) -> None:
        """Bring a counter up to the core's count."""
        if count > self._shown[key]:
            add(count - self._shown[key])
            self._shown[key] = count
