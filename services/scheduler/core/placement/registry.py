"""Every policy by its name: what the configuration and the simulator may choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.scheduler.core.placement.baton import Baton
from services.scheduler.core.placement.copies import Copies
from services.scheduler.core.placement.decode_rules import decode_rule
from services.scheduler.core.placement.option import Chance, Policy
from services.scheduler.core.placement.rivals import simple
from services.scheduler.core.placement.rivals.dynamo import DynamoCost
from services.scheduler.core.placement.rivals.llmd import LlmdScorers
from services.scheduler.core.placement.rivals.mooncake import MooncakeConductor
from services.scheduler.core.placement.rivals.preble import PrebleE2
from services.scheduler.core.placement.rivals.rule import Rival, Rule
from services.scheduler.core.placement.rivals.sglang import SglangCacheAware
from services.scheduler.core.placement.settings import PlacementSettings

_RULES: Final[dict[str, tuple[Callable[[Chance], Rule], str]]] = {
    "round_robin": (lambda chance: simple.RoundRobin(), "round_robin"),
    "random": (simple.random_rule, "round_robin"),
    "least_requests": (simple.least_requests, "least_requests"),
    "least_work": (simple.least_work, "least_requests"),
    "power_of_two": (simple.PowerOfTwo, "least_requests"),
    "longest_prefix": (simple.longest_prefix, "least_requests"),
    "local_ttft": (simple.local_ttft, "baton_headroom"),
    "session_hash": (lambda chance: simple.SessionHash(), "least_requests"),
    "preble_e2": (lambda chance: PrebleE2(), "least_requests"),
    "mooncake_conductor": (lambda chance: MooncakeConductor(), "mooncake_load"),
    "dynamo_cost": (DynamoCost, "dynamo_blocks"),
    "dynamo_lmetric": (lambda chance: DynamoCost(chance, lmetric=True), "dynamo_blocks"),
    "sglang_cache_aware": (SglangCacheAware, "least_requests"),
    "llmd_scorers": (LlmdScorers, "llmd_kv"),
}
"""Rule, and who decodes under it unless the settings say otherwise."""

POLICIES: Final = ("baton", *_RULES)


def policy(settings: PlacementSettings, chance: Chance) -> Policy:
    """The policy that the settings name, with an empty memory. Raises KeyError for a name that
    is not in POLICIES."""
    if settings.policy == "baton":
        copies = Copies(settings.replication)
        return Baton(chance, copies, fetch=settings.fetch, peers=settings.peers)
    build, decode = _RULES[settings.policy]
    return Rival(build(chance), decode_rule(settings.decode or decode))
