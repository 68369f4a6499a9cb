"""The settings of a decode worker."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import setting
from shared.dataplane.selection import PlaneSettings
from shared.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(PlaneSettings):
    """Engine, pages, batch, and the bounds of waiting."""

    engine: str = setting("torch", "backend of the model", choices=("torch", "hashchain"))
    device: str = setting("cpu", "torch device of weights and pages, e.g. cuda:0")
    kv_pages: int = setting(1024, "pages of block_tokens positions each")
    step_tokens: int = setting(512, "most tokens of one engine step")
    max_sequences: int = setting(64, "sequences that may hold pages at once")
    queue_limit: int = setting(256, "jobs that may wait for room; further ones are refused")
    reserve_wait_s: float = setting(1.0, "seconds that a job may wait for room")
    recompute_tokens: int = setting(
        8192, "most prompt tokens computed here when prefill cannot deliver them"
    )
    pull_timeout_s: float = setting(10.0, "seconds that one read of pages may take")
    poison_token: int = setting(
        -1, "for fault tests, hashchain only: computing this token ends the process; -1: none"
    )

    def __post_init__(self) -> None:
        PlaneSettings.__post_init__(self)
        positive = ("kv_pages", "max_sequences", "queue_limit", "reserve_wait_s", "pull_timeout_s")
        for name in positive:
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0")
        if self.recompute_tokens < 0:
            raise StartupError("recompute_tokens must not be negative")
        if self.step_tokens < self.block_tokens:
            raise StartupError("step_tokens must be at least block_tokens")
