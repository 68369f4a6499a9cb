"""The settings of a service that moves pages, and the adapter they mean."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from shared.clock import Clock
from shared.config import ProcessSettings, setting
from shared.dataplane.link_parts import LinkSettings
from shared.dataplane.nixl import NixlPlane
from shared.dataplane.observer import PlaneObserver
from shared.dataplane.plane import Plane
from shared.dataplane.sharded import ShardedPlane
from shared.dataplane.ucx import UcxPlane, UcxSettings
from shared.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneSettings(ProcessSettings):
    """All workers of a cluster need the same adapter: UCX, or NIXL."""

    transport: str = setting(
        "auto",
        "of pages: shared memory in one host, else TCP; nixl (an extra) for RDMA",
        choices=("auto", "shm", "tcp", "nixl"),
    )
    link_window_bytes: int = setting(32 << 20, "most page bytes on their way here from one peer")
    transfer_window_bytes: int = setting(256 << 20, "the same from all peers together")

    def __post_init__(self) -> None:
        ProcessSettings.__post_init__(self)
        for name in ("link_window_bytes", "transfer_window_bytes"):
            if getattr(self, name) <= 0:
                raise StartupError(f"{name} must be above 0")


def open_plane(settings: PlaneSettings, clock: Clock, observer: PlaneObserver) -> Plane:
    """A plane that was not started, with a lane for each rank that will register."""
    return ShardedPlane(partial(_open_lane, settings, observer), clock)


def _open_lane(settings: PlaneSettings, observer: PlaneObserver) -> Plane:
    host = settings.host
    window, total = settings.link_window_bytes, settings.transfer_window_bytes
    if settings.transport == "nixl":
        plain = LinkSettings(host=host, window_bytes=window, total_bytes=total)
        return NixlPlane(plain, observer)
    chosen = UcxSettings(
        host=host, transport=settings.transport, window_bytes=window, total_bytes=total
    )
    return UcxPlane(chosen, observer)
