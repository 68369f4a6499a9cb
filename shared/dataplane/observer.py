"""What a plane tells about itself: links, bytes, and failures by cause.

A seam for metrics; knows no metrics library. Calls come from the event loop and must not block.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Cause(StrEnum):
    """Why a read failed or a connection was turned away. A closed set: a metric label."""

    REFUSED = "refused"
    """The owner's guard said no: unknown ticket, wrong generation, ended lease."""
    OUT_OF_RANGE = "out_of_range"
    PAGE_SIZE = "page_size"
    INCOMPATIBLE = "incompatible"
    """Pages of another model or layout."""
    MALFORMED = "malformed"
    """Bytes that are not a frame of ours."""
    SILENT = "silent"
    """A connection that did not ask for anything in time."""
    TOO_MANY = "too_many"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    """The link ended in the middle."""
    INTERNAL = "internal"
    """A fault of our own, caught where tasks are supervised."""
    UNSETTLED = "unsettled"
    """A transfer could not be proven to have stopped; its pages stay out of circulation."""


class PlaneObserver(Protocol):
    """`transport` is 'shm', 'tcp', 'cuda_ipc', 'rdma', 'nixl', 'memory' or 'unknown'."""

    def link_opened(self, transport: str) -> None:
        """Our link to a peer moved its first pages; this is the transport it really uses."""
        ...

    def link_closed(self, transport: str) -> None: ...

    def pulled(self, transport: str, size_bytes: int, seconds: float) -> None:
        """A read of ours delivered."""
        ...

    def served(self, transport: str, size_bytes: int, seconds: float) -> None:
        """A peer's read was sent. Says nothing about receipt."""
        ...

    def failed(self, cause: Cause) -> None:
        """A read of ours did not deliver."""
        ...

    def turned_away(self, cause: Cause) -> None:
        """A peer's read or connection was refused or ended early."""
        ...


class SilentObserver:
    """Tells nobody."""

    def link_opened(self, transport: str) -> None: ...

    def link_closed(self, transport: str) -> None: ...

    def pulled(self, transport: str, size_bytes: int, seconds: float) -> None: ...

    def served(self, transport: str, size_bytes: int, seconds: float) -> None: ...

    def failed(self, cause: Cause) -> None: ...

    def turned_away(self, cause: Cause) -> None: ...
