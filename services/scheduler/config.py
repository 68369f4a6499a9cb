"""The scheduler's settings."""

from __future__ import annotations

from dataclasses import dataclass, fields

from services.scheduler.core.balance.settings import MODES, BalanceSettings
from services.scheduler.core.placement.copies import REPLICATIONS
from services.scheduler.core.placement.decode_rules import NAMES as DECODE_RULES
from services.scheduler.core.placement.registry import POLICIES
from services.scheduler.core.placement.settings import ADMISSIONS, FETCHES, PlacementSettings
from services.scheduler.core.placement.split import SPLITS
from services.scheduler.core.placement.weights import Weights
from shared.config import ProcessSettings, setting
from shared.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(ProcessSettings):
    """Placement and liveness."""

    lost_after_s: float = setting(3.0, "silence after which a worker is declared lost")
    reconnect_s: float = setting(
        0.3, "seconds that a worker whose connection to the bus ended has to come back"
    )
    lead_lease_s: float = setting(
        2.0, "seconds without a sign of the leader after which another scheduler takes the lead"
    )
    retry_share: float = setting(0.2, "of the live traffic that may be tries after a failure")
    retry_floor: int = setting(64, "tries after a failure that are always allowed within 10 s")
    route: str = setting(
        "auto",
        "applied where a request leaves it open: auto hands over to decode unless decode's own "
        "cache leaves less than colocate_below_tokens, or no prefill worker is ready",
        choices=("auto", "disaggregated", "colocated"),
    )
    colocate_below_tokens: int = setting(16, "uncached prompt tokens that are not worth a handoff")
    policy: str = setting("baton", "rule that chooses the workers", choices=POLICIES)
    split: str = setting(
        "uncached_threshold",
        "when route auto keeps a prompt on decode; baton_cost lets both compete by their cost",
        choices=tuple(SPLITS),
    )
    decode_placement: str = setting(
        "", "who decodes under a rival policy; empty: the rule that belongs to it"
    )
    replication: str = setting(
        "baton_benefit", "when a hot prefix gets one more copy", choices=REPLICATIONS
    )
    fetch: str = setting(
        "cheapest", "whether placement counts on blocks from the pool", choices=FETCHES
    )
    peers: bool = setting(
        True, "with fetch cheapest: on blocks of other prefill workers as well as of the pool"
    )
    admission: str = setting(
        "early_reject_predicted",
        "refuse at arrival what would miss its deadline or objective by the load predicted for "
        "the end of its prefill",
        choices=ADMISSIONS,
    )
    slo_admission: bool = setting(
        False, "apply ttft_slo_s and tpot_slo_s to requests that name no objective of their own"
    )
    ttft_slo_s: float = setting(1.0, "objective for the first token")
    tpot_slo_s: float = setting(0.1, "objective per further token")
    planner: str = setting(
        "advise",
        "what follows when other roles would serve better: advice in log, metrics and "
        "/admin/balance; act: a worker is told to change its role",
        choices=MODES,
    )
    planner_tick_s: float = setting(5.0, "seconds between two looks at the load")
    planner_window_s: float = setting(60.0, "seconds of the past that the planner looks at")
    planner_cooldown_s: float = setting(60.0, "least seconds between two changes of roles")
    planner_target: float = setting(
        0.9, "share of requests within their objectives from which on nothing is changed"
    )
    planner_colocate: bool = setting(
        True, "the last prefill worker may become a decode worker, when those do better alone"
    )
    index_bytes: int = setting(256 << 20, "memory of the prefix index")
    weights: str = setting(
        "", "constants of the placement score to be changed: name=value, separated by commas"
    )
    seed: int = setting(0, "of the draw among equally good placements")
    event_log: str = setting(
        "",
        "file for every event and decision, to be played again by loadgen sim replay; {worker} "
        "stands for worker_id; empty: none",
    )

    def __post_init__(self) -> None:
        ProcessSettings.__post_init__(self)
        if self.lost_after_s < 2 * self.heartbeat_s:
            raise StartupError("lost_after_s must be at least two heartbeat_s")
        if not 0.1 <= self.reconnect_s <= self.lost_after_s:
            raise StartupError("reconnect_s must be from 0.1 to lost_after_s")
        if self.lead_lease_s < 0.5:
            raise StartupError("lead_lease_s must be at least 0.5")
        if not 0 <= self.retry_share <= 1 or self.retry_floor < 0:
            raise StartupError("retry_share must be 0..1 and retry_floor not negative")
        if self.decode_placement and self.decode_placement not in DECODE_RULES:
            raise StartupError(f"decode_placement must be one of {', '.join(DECODE_RULES)}")
        if not (0 < self.ttft_slo_s < 3600 and 0 < self.tpot_slo_s < 3600):
            raise StartupError("ttft_slo_s and tpot_slo_s must be positive")
        if self.index_bytes < 1 << 20:
            raise StartupError("index_bytes must be at least 1 MiB")
        if self.colocate_below_tokens < 0:
            raise StartupError("colocate_below_tokens must not be negative")

        for name in ("planner_tick_s", "planner_window_s", "planner_cooldown_s"):
            if not 0 < getattr(self, name) < 86_400:
                raise StartupError(f"{name} must be above 0, and below a day")
        if not 0 < self.planner_target <= 1:
            raise StartupError("planner_target must be above 0 and at most 1")
        self._weights()

    def balance(self) -> BalanceSettings:
        """As the core takes it."""
        return BalanceSettings(
            mode=self.planner,
            tick_s=self.planner_tick_s,
            window_s=self.planner_window_s,
            cooldown_s=self.planner_cooldown_s,
            target=self.planner_target,
            may_colocate=self.planner_colocate and self.route != "disaggregated",
            ttft_slo_s=self.ttft_slo_s,
            tpot_slo_s=self.tpot_slo_s,
        )

    def placement(self) -> PlacementSettings:
        """As the core takes it."""
        return PlacementSettings(
            colocate_below_tokens=self.colocate_below_tokens,
            policy=self.policy,
            split=self.split,
            decode=self.decode_placement,
            replication=self.replication,
            fetch=self.fetch,
            peers=self.peers,
            admission=self.admission,
            objectives=self.slo_admission,
            weights=self._weights(),
        )

    def _weights(self) -> Weights:
        """The shipped ones with what was changed. Raises StartupError for what is no weight."""
        changed = {"ttft_slo_s": self.ttft_slo_s, "tpot_slo_s": self.tpot_slo_s}
        for entry in filter(None, (part.strip() for part in self.weights.split(","))):
            name, _, value = entry.partition("=")
            try:
                changed[name.strip()] = float(value)
            except ValueError:
                raise StartupError(f"weights: {entry!r} is not name=value") from None
        try:
            found = Weights(**changed)
        except TypeError:
            known = ", ".join(field.name for field in fields(Weights))
            raise StartupError(f"weights: there are only {known}") from None
        if unsound := found.unsound():
            raise StartupError(f"weights: {unsound}")
        return found
