"""The settings of a prefill worker."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import setting
from shared.dataplane.selection import PlaneSettings
from shared.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig(PlaneSettings):
    """Engine, pages, and the bounds of the queue."""

    engine: str = setting("torch", "backend of the model", choices=("torch", "hashchain"))
    device: str = setting("cpu", "torch device of weights and pages, e.g. cuda:0")
    weights: str = setting(
        "auto",
        "how the CPU keeps weights: as the file stores them, or in dtype; auto: what is faster",
        choices=("auto", "stored", "dense"),
    )
    tensor_parallel: int = setting(1, "processes that the model is split over, one GPU each")
    kv_pages: int = setting(1024, "pages of block_tokens positions each")
    chunk_tokens: int = setting(
        0, "most prompt tokens in one engine step; 0: 256 on cpu, 2048 on other devices"
    )
    queue_limit: int = setting(1024, "jobs that may wait for pages; further ones are refused")
    queue_order: str = setting(
        "groups",
        "of jobs that wait: groups by what is cached of them, in proportion; fcfs: as they came",
        choices=("groups", "fcfs"),
    )
    ttft_slo_s: float = setting(
        1.0, "objective for the first token: each tenth of it that a job waits lifts it by a group"
    )
    lease_grace_s: float = setting(5.0, "seconds past a request's deadline that pages stay")
    fetch_timeout_s: float = setting(5.0, "seconds that asking or reading the pool may take")
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

    @property
    def step_tokens(self) -> int:
        """What `chunk_tokens` means here. The pages of a chunk travel while the next is computed:
        only those of the last one are waited for. A CPU computes 128 tokens at a time as fast as
        2,048, so it takes small chunks; a GPU wants large ones."""
        return self.chunk_tokens or max(256 if self.device == "cpu" else 2048, self.block_tokens)

    def __post_init__(self) -> None:
        PlaneSettings.__post_init__(self)
        for name in (
            "tensor_parallel",
            "kv_pages",
            "queue_limit",
            "fetch_timeout_s",
            "ttft_slo_s",
            "engine_stall_s",
        ):
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0")
        if self.lease_grace_s < 0:
            raise StartupError("lease_grace_s must not be negative")
        if self.chunk_tokens != 0 and self.chunk_tokens < self.block_tokens:
            raise StartupError("chunk_tokens must be 0 or at least block_tokens")
