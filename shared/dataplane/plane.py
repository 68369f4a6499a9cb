"""The data-plane protocol: pages are *pulled*; the owner takes part in each read.

A reader names pages by (id, generation) and shows a ticket that travelled over the control
plane. The owner's guard maps that to registered memory or refuses; a peer never supplies an
address, an offset or a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shared.ids import Generation, PageId


class PageMemory(Protocol):
    """Equal pages in one contiguous region, host or device."""

    @property
    def page_bytes(self) -> int: ...

    @property
    def pages(self) -> int: ...

    def run(self, first: PageId, count: int) -> Any:
        """Writable view of `count` neighbouring pages: an object with the buffer protocol or
        `__cuda_array_interface__`."""
        ...


class ReadGuard(Protocol):
    """The owner's say over its pages (implemented by a service on top of its page cache)."""

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        """A read id, or None to refuse (unknown ticket, wrong generation, expired lease).
        From now until `close_read` the pages must be neither evicted nor rewritten."""
        ...

    def close_read(self, read: int) -> None:
        """Nothing reads these pages any more on behalf of `read`."""
        ...


@dataclass(frozen=True, slots=True)
class PageRead:
    """Copy the peer's page `source` at `generation` into our own page `target`."""

    source: PageId
    generation: Generation
    target: PageId


class ReadReport(NamedTuple):
    """What a finished read moved, and how."""

    pages: int
    bytes: int
    seconds: float
    transport: str
    runs: int


class Plane(Protocol):
    """One process's end of the data plane."""

    @property
    def address(self) -> str:
        """What a peer passes to `read` (opaque text; travels in `WorkerRef`)."""
        ...

    @property
    def transport(self) -> str:
        """The transport configured for this process, e.g. 'ucx:tcp' or 'memory'."""
        ...

    def register(self, memory: PageMemory, guard: ReadGuard, content: str = "") -> None:
        """Make the process's pages readable under `guard` and usable as read targets. Once,
        before `start`. `content` says what the pages hold (model and layout): a peer whose pages
        hold something else is refused before a byte moves, with `incompatible_workers`. Empty:
        not told, so nobody is refused for it."""
        ...

    async def start(self) -> None:
        """Begin serving reads. Raises StartupError."""
        ...

    def warm(self, peer: str) -> None:
        """A read of this peer is near: start opening the link, so that the read need not wait
        for it. Returns at once, and never fails: a peer that cannot be reached fails the read."""
        ...

    async def read(
        self, peer: str, ticket: str, pages: Sequence[PageRead], timeout_s: float
    ) -> ReadReport:
        """Pull pages into our memory. **When this returns or raises, nothing lands any more**,
        also after a timeout or when the caller is cancelled; the one exception is
        `TransferError.settled == False`: then the targets must stay in quarantine for good.
        Raises TransferError: refused by the owner (code `stale`), peer gone, timed out."""
        ...

    async def forget(self, peer: str) -> None:
        """Close the link to a peer that is known to be dead."""
        ...

    async def close(self) -> None: ...
