"""The scheduler's settings."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import ProcessSettings, setting
from shared.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(ProcessSettings):
    """Placement and liveness."""

    lost_after_s: float = setting(3.0, "silence after which a worker is declared lost")
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
    seed: int = setting(0, "of the draw among equally good placements")

    def __post_init__(self) -> None:
        ProcessSettings.__post_init__(self)
        if self.lost_after_s < 2 * self.heartbeat_s:
            raise StartupError("lost_after_s must be at least two heartbeat_s")
        if self.lead_lease_s < 0.5:
            raise StartupError("lead_lease_s must be at least 0.5")
        if not 0 <= self.retry_share <= 1 or self.retry_floor < 0:
            raise StartupError("retry_share must be 0..1 and retry_floor not negative")
        if self.colocate_below_tokens < 0:
            raise StartupError("colocate_below_tokens must not be negative")
