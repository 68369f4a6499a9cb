"""Refusing early what would miss its deadline or objective anyway, and tenants beyond their share.

A decision at arrival from the load that is predicted for the moment when prefill would end, as it
is not exceeded in four of five cases: judging by the load of now makes prefill and decode swing in
anti-phase (algorithms, section 9).
"""

from __future__ import annotations

from services.scheduler.core.cluster import Worker
from services.scheduler.core.flights import load_at
from services.scheduler.core.placement.option import Option
from services.scheduler.core.placement.settings import PlacementSettings
from services.scheduler.core.placement.view import View
from shared.errors import Code
from shared.wire.requests import Refused

_LEAST_RETRY_S = 1.0
_MOST_RETRY_S = 30.0
_DEVIATIONS = 0.84
"""Above the expected load: in four of five cases no more than that comes."""


class Admission:
    """Judges an option; total, changes nothing."""

    def __init__(self, settings: PlacementSettings) -> None:
        self._rule = settings.admission
        self._always = settings.objectives

    def judge(self, view: View, option: Option) -> Refused | None:
        """Why not, with the time after which asking again makes sense. A stream that has begun
        goes on: somebody has already waited for it."""
        if self._rule == "none" or view.ask.attempt > 1:
            return None
        return (
            self._deadline(view, option) or self._objectives(view, option) or _share(view, option)
        )

    def _deadline(self, view: View, option: Option) -> Refused | None:
        late_s = option.ttft_s - view.ask.deadline_s
        if view.ask.deadline_s <= 0.0 or late_s <= 0.0:
            return None
        message = f"the first token would come {late_s:.1f} s after the deadline"
        return _refused(Code.DEADLINE_UNATTAINABLE, message, late_s)

    def _objectives(self, view: View, option: Option) -> Refused | None:
        ask = view.ask
        if (self._always or ask.ttft_slo_s > 0.0) and option.ttft_s > view.ttft_slo_s:
            late_s = option.ttft_s - view.ttft_slo_s
            message = f"the first token would come {late_s:.1f} s after the objective"
            return _refused(Code.DEADLINE_UNATTAINABLE, message, late_s)
        if not (self._always or ask.tpot_slo_s > 0.0):
            return None
        step_s = self.step_s(view, option)
        if step_s <= view.tpot_slo_s:
            return None
        message = f"decode would take {step_s * 1e3:.0f} ms a token by then"
        return _refused(Code.DEADLINE_UNATTAINABLE, message, option.ttft_s)

    def step_s(self, view: View, option: Option) -> float:
        """Of the decode worker with this request in its batch: at the time when its prefill ends,
        or now under the rule `early_reject_now`."""
        worker, ask = option.decode, view.ask
        sequences, context = _now(view, worker)
        if self._rule == "early_reject_predicted":
            sequences, context = _then(view, worker, view.now + option.ttft_s)
        return view.step_s(worker, sequences + 1, context + ask.prompt_tokens)


def _now(view: View, worker: Worker) -> tuple[float, float]:
    load = worker.report.load
    return float(load.running_sequences), float(worker.pages_used() * worker.report.block_tokens)


def _then(view: View, worker: Worker, at_s: float) -> tuple[float, float]:
    """Of the flights there; what a worker runs beside them (placed by an earlier leader) stays."""
    load = worker.report.load
    flights = view.world.flights.believed(worker.report.worker, worker.requests())
    table = view.world.learned.lengths.table(view.ask.tenant, view.ask.model_digest)

    def survives(more: float, after: float) -> float:
        return 1.0 if table is None else table.survives(more, after)

    sequences, context = load_at(flights, at_s, view.now, survives, _DEVIATIONS)
    unknown = max(0, load.running_sequences - len(flights))
    return sequences + unknown, context + unknown * view.ask.prompt_tokens


def _share(view: View, option: Option) -> Refused | None:
    """While everybody waits, a tenant well above its fair share waits outside. Shares are of the
    work placed in the last half minute; priority widens them, and a lone tenant has all."""
    weights = view.weights
    wait_s = option.terms.get("wait_s", 0.0)
    if wait_s <= weights.fair_wait_s:
        return None
    shares = view.world.tenants.shares(view.now)
    if len(shares) < 2:
        return None
    own = shares.get(view.ask.tenant, 0.0)
    fair = sum(shares.values()) / len(shares) * (1.0 + weights.fair_slack) / view.others
    if own <= fair:
        return None
    message = "others wait while this tenant has more than its share"
    return _refused(Code.QUEUE_FULL, message, wait_s)


def _refused(code: Code, message: str, after_s: float) -> Refused:
    return Refused(code.value, message, min(_MOST_RETRY_S, max(_LEAST_RETRY_S, after_s)))
