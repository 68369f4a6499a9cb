"""What a run is to do, as plain values: whom to ask and how, and at which pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MOST_PROCESSES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The requests' envelope; prompts and lengths come from the workload."""

    base_url: str
    path: str = COMPLETIONS
    model: str
    temperature: float = 0.0
    ignore_eos: bool = False
    timeout_s: float = 300.0
    headers: tuple[tuple[str, str], ...] = ()
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    tenant_headers: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    hints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per group number, or '*': {"headers": {…}, "body": {…}}."""
    sessions: bool = False
    """Each row's session stands for a client's affinity key, and is sent as one."""
    token_ids: bool = False
    """Ask for the ids of the answer, so that the next turn can repeat them exactly."""

    @property
    def chat(self) -> bool:
        return self.path.endswith("/chat/completions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When requests go out and when they are given up."""

    closed: bool = False
    """As many users as `cap`, each sending its next request after its last one's end."""
    cap: int = 0
    """Most requests at a time; 0: no cap."""
    think_s: float = 0.0
    duration_s: float = 0.0
    """No request is intended later; 0: until the workload ends."""
    grace_s: float = 0.0
    """Seconds after the last intended send before what still runs is cut; 0: never."""
    cancel_rate: float = 0.0
    cancel_after_s: float = 1.0
    seed: int = 0
    slot: tuple[float, float] = (0.0, float("inf"))
    """Only requests of this part of the schedule, which then begins at once."""
    stall_s: float = 0.0
    """Tests only: the client blocks so long before each send."""
    steady: tuple[float, float] = (0.0, float("inf"))
    """Intended sends of which gaps between tokens are kept, in seconds of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One client process's part."""

    index: int
    of: int
    phase: str = "measured"
    step: int = 0
