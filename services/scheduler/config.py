"""The scheduler's settings."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import ProcessSettings, setting
from shared.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(ProcessSettings):
    """Placement and liveness."""

    lost_after_s: float = setting(3.0, "silence after which a worker is declared lost")
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
        if self.colocate_below_tokens < 0:
            raise StartupError("colocate_below_tokens must not be negative")
