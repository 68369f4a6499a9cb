"""Whether a hot prefix gets one more copy now, or loses one (algorithms, section 3.6).

`baton_benefit`: a copy pays when the queueing that it saves within the horizon exceeds its cost by
half. `mooncake_hits`: a fixed number of hits makes a copy. `none`: never on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.scheduler.core.cluster import Worker
from services.scheduler.core.heat import Heat, Prefix
from services.scheduler.core.lookup import bits
from services.scheduler.core.placement.option import Option
from services.scheduler.core.placement.view import View

REPLICATIONS: Final = ("baton_benefit", "mooncake_hits", "none")
_HITS_RATE: Final = 0.8
"""Hits per second within ten seconds (Mooncake's hot-key rule)."""
_MOST_BY_HITS: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """For one request. `holders` and `retired` are masks of device slots."""

    copy: bool = False
    why: str = ""
    holders: int = 0
    retired: int = 0
    prefix: Prefix | None = None
    excess_s: float = 0.0
    """What the request waits longer at the best holder than it would elsewhere."""

    def holds(self, view: View, worker: Worker) -> bool:
        return _among(self.holders, view, worker)

    def gives_up(self, view: View, worker: Worker) -> bool:
        return _among(self.retired, view, worker)


NOTHING: Final = Plan()


class Copies:
    """Watches arrivals, plans copies within the budget, remembers what it planned."""

    def __init__(self, rule: str = "baton_benefit") -> None:
        self._rule = rule
        self.heat = Heat()
        self.made = 0
        self.dropped = 0
        self._plan = NOTHING

    def plan(self, view: View, options: Sequence[Option]) -> Plan:
        """What to do about the prefix of this request."""
        self._plan = NOTHING
        if self._rule != "none" and len(view.ask.block_hashes) > 1:
            prefix = self.heat.hottest(view.ask.block_hashes, view.now)
            if prefix is not None:
                self._plan = self._judge(view, options, prefix)
        return self._plan

    def placed(self, view: View, option: Option) -> None:
        """The request went there."""
        limit, work_s = view.cached_limit(option.site), option.work_s
        left_s = view.prefilling(option.site)

        def own_s(depth: int) -> float:
            seconds = left_s(depth if depth < limit else limit)
            return seconds if seconds < work_s else work_s

        self.heat.arrive(view.ask.block_hashes, own_s, view.now)
        plan, prefix = self._plan, self._plan.prefix
        self._plan = NOTHING
        if prefix is None:
            return
        if plan.holds(view, option.site):
            prefix.regrets(plan.excess_s, view.now)
        if not plan.copy or plan.holds(view, option.site):
            return
        prefix.changed_s, prefix.cold_since_s = view.now, None
        self.heat.copied(prefix, 1)
        prefix.regret_s = 0.0
        self.made += 1

    # -- inside ------------------------------------------------------------------------------

    def _judge(self, view: View, options: Sequence[Option], prefix: Prefix) -> Plan:
        group = view.prefills if view.prefills.workers else view.decodes
        everyone = view.mask(group)
        held = view.match.slots_at(prefix.depth) & everyone
        for slot, depth in view.match.predicted.items():
            if depth >= prefix.depth and everyone >> slot & 1:
                held |= 1 << slot
        retired = prefix.retired & held
        active = (held & ~retired).bit_count()
        if active == 0:
            return NOTHING
        background = self._background(view, prefix, len(group.workers))
        holds = [_among(held, view, option.site) for option in options]
        excess_s = self._excess_s(options, holds)
        if self._rule == "baton_benefit":
            self._cool(view, prefix, held & ~retired, background)
            retired = prefix.retired & held
            price = (*self._price(options, holds), excess_s)
            copy, why = self._pays(view, prefix, (active, len(group.workers), background), price)
        else:
            copy = prefix.rate(view.now) >= _HITS_RATE and active < _MOST_BY_HITS
            why = f"{prefix.rate(view.now):.1f} requests a second"
        if copy and not self._affordable(view, prefix):
            copy = False
        if copy and prefix.retired:
            prefix.retired = 0
            prefix.changed_s = view.now
            copy, retired = False, 0
        return Plan(copy, why, held, retired, prefix, excess_s)

    @staticmethod
    def _background(view: View, prefix: Prefix, workers: int) -> float:
        """How busy a holder is with everything else."""
        own = prefix.rate(view.now) * prefix.work_s / max(1, workers)
        return max(0.0, view.busy() - own)

    def _pays(
        self,
        view: View,
        prefix: Prefix,
        known: tuple[int, int, float],
        price: tuple[float, float, float],
    ) -> tuple[bool, str]:
        """Each request to come saves what queueing theory says of a steady stream, or what those
        that came lately waited in vain, if that was more: streams are seldom steady. Requests that
        come before the copy is there gain nothing by it."""
        (active, workers, background), (cost_s, ready_s, excess_s) = known, price
        weights, now = view.weights, view.now
        rate = prefix.rate(now)
        regret_s = (prefix.regret(now) + excess_s) / active
        most = math.ceil(rate * prefix.work_s / weights.busy_target) if regret_s <= 0.0 else workers
        if active >= min(workers, most) or now - prefix.changed_s < weights.dwell_s:
            return False, ""
        saved = prefix.wait_s(active, background, now) - prefix.wait_s(active + 1, background, now)
        coming = prefix.coming(weights.copy_horizon_s, now)
        gaining = max(0.0, coming - rate * ready_s)
        share = gaining / coming if coming > 0.0 else 0.0
        benefit_s = max(gaining * saved if gaining > 0.0 else 0.0, share * regret_s)
        why = (
            f"{rate:.1f} requests a second on {active} holders would save {benefit_s:.2f} s "
            f"for {cost_s:.2f} s"
        )
        return benefit_s > weights.copy_ratio * cost_s, why

    @staticmethod
    def _excess_s(options: Sequence[Option], holds: Sequence[bool]) -> float:
        there = [o.terms["wait_s"] for o, held in zip(options, holds, strict=True) if held]
        return min(there) - min([option.terms["wait_s"] for option in options]) if there else 0.0

    @staticmethod
    def _price(options: Sequence[Option], holds: Sequence[bool]) -> tuple[float, float]:
        """What it adds to all delays when this request goes where the prefix is not (its own wait
        and computing, evictions, and what its work costs those that come later), and when the
        copy would be there."""
        fresh = [option for option, held in zip(options, holds, strict=True) if not held]
        if not fresh:
            return math.inf, math.inf
        one = min(fresh, key=lambda option: option.score)
        return max(0.0, one.score - min([option.score for option in options])), one.ttft_s

    def _cool(self, view: View, prefix: Prefix, active: int, background: float) -> None:
        """Give up a copy that has not paid for a minute; never the last one."""
        weights, now, holders = view.weights, view.now, active.bit_count()
        if holders < 2 or prefix.made == 0:
            prefix.cold_since_s = None
            return
        saved = prefix.wait_s(holders - 1, background, now) - prefix.wait_s(
            holders, background, now
        )
        group = view.prefills if view.prefills.workers else view.decodes
        cost_s = view.prefill_s(group.workers[0], 0)
        if weights.copy_horizon_s * prefix.rate(now) * saved >= weights.drop_ratio * cost_s:
            prefix.cold_since_s = None
            return
        if prefix.cold_since_s is None:
            prefix.cold_since_s = now
        if (
            now - prefix.cold_since_s >= weights.drop_after_s
            and now - prefix.changed_s >= weights.dwell_s
        ):
            prefix.retired |= 1 << max(bits(active))
            self.heat.copied(prefix, -1)
            prefix.changed_s = prefix.cold_since_s = now
            self.dropped += 1

    def _affordable(self, view: View, prefix: Prefix) -> bool:
        """Copies take no more than their share of all device pages."""
        pages = view.pages_total()
        return self.heat.copied_blocks + prefix.depth <= view.weights.copy_pages_share * pages


def _among(mask: int, view: View, worker: Worker) -> bool:
    """Whether the worker's device slot is in a mask."""
    slot = view.world.index.slot(worker.report.worker, "device")
    return slot is not None and bool(mask >> slot & 1)
