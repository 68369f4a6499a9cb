"""From a request to an option: route, policy, admission, in this order.

Holds what policies remember; owns no worker and no charge.
"""

from __future__ import annotations

from services.scheduler.core.placement.admission import Admission
from services.scheduler.core.placement.option import Chance, Decision
from services.scheduler.core.placement.registry import policy
from services.scheduler.core.placement.settings import PlacementSettings
from services.scheduler.core.placement.split import SPLITS, offers
from services.scheduler.core.placement.view import View
from services.scheduler.core.world import World
from shared.wire.requests import PlaceRequest, Refused


class Placer:
    """One policy at work on one world."""

    def __init__(self, settings: PlacementSettings, chance: Chance, world: World) -> None:
        self.settings = settings
        self.world = world
        self.policy = policy(settings, chance)
        self.admission = Admission(settings)
        self._split = SPLITS[settings.split]

    def view(self, ask: PlaceRequest, now: float) -> View:
        """This request against the world."""
        return View(ask, self.world, self.settings.weights, now)

    def decide(self, view: View) -> Decision | None:
        """The first offer of the route in which something fits; None: nothing does."""
        below = self.settings.colocate_below_tokens
        for offer in offers(view, self._split, below):
            decision = self.policy.decide(view, offer)
            if decision is not None:
                return decision
        return None

    def held_back(self, view: View, decision: Decision) -> Refused | None:
        """Why the request had better not run now, although it could be placed."""
        return self.admission.judge(view, decision.chosen)

    def placed(self, view: View, decision: Decision, sequence: int) -> None:
        """It was placed: rates, sessions, predictions and the policy's memory follow."""
        chosen, ask, now, world = decision.chosen, view.ask, view.now, self.world
        self.policy.placed(view, chosen)
        if chosen.prefill is not None or not view.prefills.workers:
            world.pace.add(chosen.work_s, now)
            world.burst.add(chosen.work_s, now)
        world.paces.add(chosen.site.report.worker, chosen.work_s, now)
        if chosen.fetch is not None:
            fetched = chosen.fetch.blocks * chosen.site.report.page_bytes
            world.will_read(chosen.site, chosen.fetch.owner, sequence, fetched, now)
        if chosen.moved_bytes > 0:
            world.will_read(chosen.decode, chosen.site, sequence, chosen.moved_bytes, now)
        world.tenants.add(ask.tenant, chosen.work_s, now)
        world.sessions.remember((ask.tenant, ask.affinity_key), chosen.site.report.worker, now)
        world.index.predict(chosen.site.report.worker, ask.block_hashes, now)
