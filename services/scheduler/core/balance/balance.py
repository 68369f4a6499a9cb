"""The planner over the living cluster: what is asked comes in, advice and orders come out.

Soft state: a new leader begins with an empty window and finds changes under way in heartbeats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from services.scheduler.core.balance.demand import Asked, Demand, Load
from services.scheduler.core.balance.flips import Flipped, Flips
from services.scheduler.core.balance.forecast import Speeds, Split
from services.scheduler.core.balance.planner import Look, Planner, Proposal, Seen, Strain
from services.scheduler.core.balance.settings import BalanceSettings
from services.scheduler.core.cluster import Worker
from services.scheduler.core.world import World
from shared.ids import Epoch, WorkerId
from shared.wire.requests import Placement, PlacementEnded, PlaceRequest, Refused
from shared.wire.workers import Heartbeat, SwitchRole

_MOST_MODELS: Final = 64
_ROLES: Final = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class OrderSwitch:
    """Send this to the worker, which has this role; feed `SwitchAnswered`."""

    role: str
    order: SwitchRole


@dataclass(frozen=True, slots=True)
class Planned:
    """For the log: what the planner proposed, ordered, or saw the end of."""

    event: str
    worker: str
    to: str
    reason: str


class Balance:
    """`tick` at any rate: it looks every `tick_s`, and follows a change under way each time."""

    def __init__(self, settings: BalanceSettings, world: World) -> None:
        self.settings = settings
        self.flips = Flips(settings)
        self.looks: dict[str, Look] = {}
        self.proposed = 0
        self._demand = Demand(settings.window_s)
        self._world = world
        self._planners: dict[str, Planner] = {}
        self._steps_s: dict[WorkerId, float] = {}
        """The mean decode step of a worker's last report that had any."""
        self._due_s = float("-inf")
        self._said: Proposal | None = None

    # -- what is heard ---------------------------------------------------------------------

    def asked(self, ask: PlaceRequest, reply: Placement | Refused, now: float) -> None:
        """A question was answered."""
        if self.settings.mode == "off" or ask.prompt_tokens <= 0:
            return
        lengths, settings = self._world.learned.lengths, self.settings
        expected = lengths.expected(
            ask.tenant, ask.model_digest, ask.expected_output_tokens, max(1, ask.max_tokens)
        )
        asked = Asked(
            model=ask.model_digest,
            at_s=now,
            prompt_tokens=ask.prompt_tokens,
            answer_tokens=expected,
            ttft_slo_s=_objective(ask.ttft_slo_s, settings.ttft_slo_s),
            tpot_slo_s=_objective(ask.tpot_slo_s, settings.tpot_slo_s),
            needs_prefill=ask.route == "disaggregated",
        )
        if isinstance(reply, Placement):
            site = self._world.cluster.get((reply.prefill or reply.decode).worker)
            size = site.report.block_tokens if site else 0
            asked.cached_tokens = reply.cached_blocks * size
        self._demand.asked(ask, asked, reply)

    def ended(self, event: PlacementEnded, now: float) -> None:
        """An attempt is over."""
        if self.settings.mode != "off":
            self._demand.ended(event, now)

    def heard(self, beat: Heartbeat) -> None:
        """A worker reported."""
        if self.settings.mode == "off" or beat.role != "decode":
            return
        steps = [step.seconds for step in beat.steps if step.sequences > 0]
        if beat.load.running_sequences == 0:
            self._steps_s.pop(beat.worker, None)
        elif steps and all(map(math.isfinite, steps)):
            self._steps_s[beat.worker] = sum(steps) / len(steps)

    def led(self, now: float) -> None:
        """We took the lead."""
        self.flips.led(now)
        self.looks.clear()
        self._planners.clear()

    def answered(self, worker: WorkerId, epoch: Epoch, refusal: str, now: float) -> list[Planned]:
        """The worker has taken the order (its heartbeats will say so), or not (`refusal`)."""
        return self._over(self.flips.refused(worker, epoch, refusal, now)) if refusal else []

    # -- what is to be done ----------------------------------------------------------------

    def tick(self, leader_epoch: Epoch, now: float) -> list[OrderSwitch | Planned]:
        """Time passed while we lead."""
        if self.settings.mode == "off":
            return []
        found: list[OrderSwitch | Planned] = []
        found += self._over(self.flips.tick(self._world.cluster, now))
        if now >= self._due_s:
            self._due_s = now + self.settings.tick_s
            self._demand.expire(now)
            found += self._look(now)
        found += self._over(self._floor(now))
        flip = self.flips.due(now)
        if flip is not None:
            order = SwitchRole(flip.worker, flip.epoch, leader_epoch, flip.to)
            found.append(OrderSwitch(flip.source, order))
        return found

    # -- inside ----------------------------------------------------------------------------

    def _look(self, now: float) -> list[Planned]:
        known = self._world.cluster.get
        self._steps_s = {w: step_s for w, step_s in self._steps_s.items() if known(w)}
        self.looks = {model: self._look_at(model, now) for model in self._models()}
        open_to_change = self.flips.current is None and now >= self.flips.cool_until_s
        proposals = [look.proposal for look in self.looks.values() if look.proposal]
        if not proposals or not open_to_change:
            self._said = self._said if proposals else None
            return []
        best = max(proposals, key=lambda proposal: proposal.gain)
        worker = self._idlest(best)
        planned: list[Planned] = []
        if self._said is None or (self._said.to, self._said.model) != (best.to, best.model):
            self._said = best
            self.proposed += 1
            name = worker.report.worker if worker else ""
            planned.append(Planned("planner.proposed", name, best.to, best.reason))
        if self.settings.mode == "act" and worker is not None:
            self.flips.order(worker, best.to, best.reason, now)
            name = worker.report.worker
            planned.append(Planned("planner.flip_ordered", name, best.to, best.reason))
        return planned

    def _look_at(self, model: str, now: float) -> Look:
        planner = self._planners.get(model)
        if planner is None:
            if len(self._planners) >= _MOST_MODELS:
                self._planners.clear()
            planner = self._planners[model] = Planner(self.settings)
        prefills, decodes = (self._of(role, model) for role in _ROLES)
        load = self._demand.load(model, now)
        return planner.look(
            model,
            Split(len(prefills), len(decodes)),
            load,
            Seen(self._demand.kept(model, now), self._strain(prefills, decodes, load, now)),
            self._speeds(prefills or decodes, decodes),
            self.flips.takes_s,
        )

    def _strain(
        self, prefills: list[Worker], decodes: list[Worker], load: Load, now: float
    ) -> Strain:
        """Measured by the median objective of the load."""
        ttft_s = sorted(sample.ttft_slo_s for sample in load.samples)
        tpot_s = sorted(sample.tpot_slo_s for sample in load.samples)
        middle = len(load.samples) // 2
        late = [w for w in prefills if ttft_s and w.wait_s(now) > ttft_s[middle]]
        steps = [self._steps_s.get(w.report.worker, 0.0) for w in decodes]
        slow = [step_s for step_s in steps if tpot_s and step_s > tpot_s[middle]]
        return Strain(len(late), len(prefills), len(slow), len(decodes))

    def _models(self) -> list[str]:
        decodes = self._world.cluster.of_role("decode")
        return sorted({worker.report.model_digest for worker in decodes})[:_MOST_MODELS]

    def _of(self, role: str, model: str) -> list[Worker]:
        return self._world.cluster.group(role, model).workers

    def _speeds(self, prefills: list[Worker], decodes: list[Worker]) -> Speeds:
        """Of the first of each: workers of a model are alike, or at least measured alike."""
        learned, prefill, decode = self._world.learned, prefills[0].report, decodes[0].report
        return Speeds(
            prefill=learned.costs(prefill),
            decode=learned.costs(decode),
            context_token_s=learned.context_token_s(decode),
            decode_pages=min(worker.report.load.pages_total for worker in decodes),
            block_tokens=decode.block_tokens,
            step_tokens=decode.load.step_tokens,
        )

    def _idlest(self, proposal: Proposal) -> Worker | None:
        """Of those that can change: who has least to finish."""
        able = [w for w in self._of(proposal.source, proposal.model) if w.report.switchable]
        return min(
            able,
            key=lambda w: (w.requests(), w.pages_used(), w.report.worker),
            default=None,
        )

    def _floor(self, now: float) -> Flipped | None:
        """Workers may have died since the order was made: the last one of a role stays."""
        flip = self.flips.current
        worker = None if flip is None else self._world.cluster.get(flip.worker)
        if flip is None or worker is None:
            return None
        left = [w for w in self._of(flip.source, worker.report.model_digest) if w is not worker]
        if left or (flip.source == "prefill" and self.settings.may_colocate):
            return None
        return self.flips.withdraw(f"it is the last {flip.source} worker", now)

    def _over(self, ended: Flipped | None) -> list[Planned]:
        if ended is None:
            return []
        self._demand.judge_anew()
        self._steps_s.clear()
        self._said = None
        for planner in self._planners.values():
            planner.patience.agrees("")
        outcome = f"{ended.outcome} after {ended.seconds:.1f} s"
        return [Planned("planner.flip_ended", ended.worker, ended.to, outcome)]


def _objective(own_s: float, shared_s: float) -> float:
    return own_s if own_s > 0.0 and math.isfinite(own_s) else shared_s
