"""The NIXL adapter of the data plane: one-sided reads, for RDMA and GPU memory across hosts.

An extra: `pip install nixl-cu13`. The owner's guard and tickets hold as everywhere, over a socket
of ours; but who opened a link gets the library's key to *all* pages of the owner, so links are for
workers of one trust domain. Knows no requests, no leases and no engine.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.dataplane.link_address import NO_DOMAIN, PlaneAddress, new_key
from shared.dataplane.link_parts import LinkSettings, PlaneParts
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.linked import LinkedPlane
from shared.dataplane.nixl_agent import Agent, Mover
from shared.dataplane.nixl_owner import OwnerLink
from shared.dataplane.nixl_reader import ReaderLink
from shared.dataplane.observer import PlaneObserver
from shared.dataplane.plane import PageMemory
from shared.errors import TransferError


class NixlPlane(LinkedPlane):
    """Implements `Plane`. Lives on one event loop, with one polling thread."""

    def __init__(
        self,
        settings: LinkSettings,
        observer: PlaneObserver | None = None,
        make_agent: Callable[[str, PageMemory], Mover] = Agent,
    ) -> None:
        super().__init__(_NixlWiring(make_agent), settings, observer)


class _NixlWiring:
    """Implements Wiring."""

    scheme = "nixl"
    setting = "ucx"

    def __init__(self, make_agent: Callable[[str, PageMemory], Mover]) -> None:
        self._make_agent = make_agent
        self._opened: tuple[PlaneParts, Mover] | None = None

    def open(self, parts: PlaneParts) -> str:
        self._opened = (parts, self._make_agent(new_key(), parts.memory))
        return NO_DOMAIN

    def link(self, address: PlaneAddress) -> ReaderLink:
        if self._opened is None:
            raise TransferError("the data plane is not running")
        return ReaderLink(address, *self._opened)

    async def serve(self, stream: FrameStream) -> None:
        if self._opened is not None:
            await OwnerLink(stream, *self._opened).run()

    def close(self) -> None:
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None
