"""The UCX adapter of the data plane.

A socket of ours opens each link, binds where it is told and notices a dead peer at once; asks and
pages travel on UCX, straight from the owner's memory into ours. Knows no requests, no leases and
no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.dataplane.link_address import NO_DOMAIN, PlaneAddress, memory_domain
from shared.dataplane.link_parts import LinkSettings, PlaneParts
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.link_wire import Lane
from shared.dataplane.linked import LinkedPlane
from shared.dataplane.observer import PlaneObserver
from shared.dataplane.region import Region
from shared.dataplane.ucx_library import UcxLibrary
from shared.dataplane.ucx_owner import OwnerLink
from shared.dataplane.ucx_pump import Pump
from shared.dataplane.ucx_reader import ReaderLink
from shared.errors import Code, StartupError, TransferError

_LANES: Final = {
    "auto": frozenset((Lane.SHM, Lane.TCP)),
    "tcp": frozenset((Lane.TCP,)),
    "shm": frozenset((Lane.SHM,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxSettings(LinkSettings):
    """Where to listen, and how pages may travel."""

    transport: str = "auto"
    """'auto': shared memory within one host, TCP across; 'tcp' or 'shm': that only."""
    compiled: bool = True
    """Post operations through the C library, where it can be compiled."""


class UcxPlane(LinkedPlane):
    """Implements `Plane`. Lives on one event loop."""

    def __init__(self, settings: UcxSettings, observer: PlaneObserver | None = None) -> None:
        wiring = _UcxWiring(settings.host, settings.transport, settings.compiled)
        super().__init__(wiring, settings, observer)


class _UcxWiring:
    """Implements Wiring."""

    scheme = "ucx"

    def __init__(self, host: str, transport: str, compiled: bool) -> None:
        if transport not in _LANES:
            raise StartupError("transport must be 'auto', 'tcp' or 'shm'")
        self.setting = transport
        self._host = host
        self._compiled = compiled
        self._domain = NO_DOMAIN
        self._opened: tuple[PlaneParts, UcxLibrary, Pump, Region] | None = None

    def open(self, parts: PlaneParts) -> str:
        """Also what takes long the first time."""
        if self.setting != "tcp":
            self._domain = memory_domain()
        region = Region(parts.memory)
        library = UcxLibrary(
            self._host,
            cuda=region.on_device,
            shared_only=self.setting == "shm",
            plain=not self._compiled,
        )
        library.prepare(Lane.TCP if self.setting == "tcp" else Lane.SHM)
        self._opened = (parts, library, Pump(), region)
        return self._domain

    def link(self, address: PlaneAddress) -> ReaderLink:
        if self._opened is None:
            raise TransferError("the data plane is not running")
        return ReaderLink(address, self._lane(address), *self._opened)

    async def serve(self, stream: FrameStream) -> None:
        if self._opened is not None:
            await OwnerLink(stream, *self._opened).run(_LANES[self.setting])

    def close(self) -> None:
        self._opened = None

    def _lane(self, address: PlaneAddress) -> Lane:
        if self._domain != NO_DOMAIN and address.domain == self._domain:
            return Lane.SHM
        if self.setting == "shm":
            raise TransferError("the peer shares no memory with us", Code.INCOMPATIBLE_WORKERS)
        return Lane.TCP
