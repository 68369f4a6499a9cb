"""The settings of a pool node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.config import setting
from shared.dataplane.selection import PlaneSettings
from shared.errors import StartupError

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPoolConfig(PlaneSettings):
    """How much is kept, and how it is moved."""

    host_bytes: int = setting(8 * _GIB, "host memory for blocks; taken from the system as it fills")
    pull_pages: int = setting(64, "most pages in one read from an owner")
    pull_timeout_s: float = setting(10.0, "seconds that one read from an owner may take")
    offer_limit: int = setting(64, "offers that may wait; further ones are refused")

    def __post_init__(self) -> None:
        PlaneSettings.__post_init__(self)
        for name in ("host_bytes", "pull_pages", "pull_timeout_s", "offer_limit"):
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0")
