"""The settings of a decode worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.config import setting
from shared.dataplane.selection import PlaneSettings
from shared.errors import StartupError

_ALONE_TOKENS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(PlaneSettings):
    """Engine, pages, batch, and the bounds of waiting."""

    engine: str = setting("torch", "backend of the model", choices=("torch", "hashchain"))
    device: str = setting("cpu", "torch device of weights and pages, e.g. cuda:0")
    graphs: bool = setting(True, "on a GPU, replay decode steps that were recorded at start")
    weights: str = setting(
        "auto",
        "how the CPU keeps weights: as the file stores them, or in dtype; auto: what is faster",
        choices=("auto", "stored", "dense"),
    )
    tensor_parallel: int = setting(1, "processes that the model is split over, one GPU each")
    kv_pages: int = setting(1024, "pages of block_tokens positions each")
    step_tokens: int = setting(
        0, "most tokens of a step in which sequences decode; 0: measured against tpot_target_s"
    )
    step_policy: str = setting(
        "fixed",
        "prompts share what is left of step_tokens (fixed), or what running sequences can spare of "
        "tpot_target_s: each gap for itself, or a sequence's mean, so that one ahead lends",
        choices=("fixed", "gap", "mean"),
    )
    alone_tokens: int = setting(
        0, "most tokens of a step in which none decodes; 0: step_tokens, or 512 if that is 0"
    )
    tpot_target_s: float = setting(0.1, "seconds between two tokens of a sequence to keep below")
    forecast: bool = setting(
        True, "take a job in only if the pages will do until all have ended, not just now"
    )
    priority_point_s: float = setting(
        0.1, "seconds of earlier arrival that one point of priority is worth"
    )
    max_sequences: int = setting(64, "sequences that may hold pages at once")
    queue_limit: int = setting(256, "jobs that may wait for room; further ones are refused")
    reserve_wait_s: float = setting(1.0, "seconds that a job may wait for room")
    recompute_tokens: int = setting(
        8192, "most prompt tokens computed here when prefill cannot deliver them"
    )
    pull_timeout_s: float = setting(10.0, "seconds that one read of pages may take")
    engine_stall_s: float = setting(
        30.0, "least seconds after which an engine call counts as hung (more where steps are long)"
    )
    pace: str = setting(
        "",
        "for benches, hashchain only: milliseconds that a prefill step, each of its tokens, a "
        "decode step and each further sequence take at least, e.g. 5,0.5,20,2",
    )
    switchable: bool = setting(
        False, "whoever started this process starts it in the other role when it exits with 75"
    )
    poison_token: int = setting(
        -1, "for fault tests, hashchain only: computing this token ends the process; -1: none"
    )

    def __post_init__(self) -> None:
        PlaneSettings.__post_init__(self)
        positive = ("tensor_parallel", "kv_pages", "max_sequences", "queue_limit")
        for name in (
            *positive,
            "reserve_wait_s",
            "pull_timeout_s",
            "engine_stall_s",
            "tpot_target_s",
        ):
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0")
        if self.recompute_tokens < 0:
            raise StartupError("recompute_tokens must not be negative")
        for name in ("step_tokens", "alone_tokens"):
            if getattr(self, name) and getattr(self, name) < self.block_tokens:
                raise StartupError(f"{name} must be 0 or at least block_tokens")
        if self.priority_point_s < 0:
            raise StartupError("priority_point_s must not be negative")

    @property
    def most_tokens(self) -> int:
        """Of a step that holds nobody up."""
        return self.alone_tokens or self.step_tokens or max(_ALONE_TOKENS, self.block_tokens)
