"""What a plane of links is made of: settings, what its links share, and what an adapter adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.dataplane.deadlines import Deadlines
from shared.dataplane.flow import Budget, Portion, portions
from shared.dataplane.link_address import PlaneAddress
from shared.dataplane.link_stream import FrameStream
from shared.dataplane.observer import PlaneObserver
from shared.dataplane.plane import PageMemory, PageRead, ReadGuard
from shared.dataplane.runs import coalesce
from shared.dataplane.transfer import Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Where to listen, and how much may be on its way."""

    host: str = "127.0.0.1"
    """Literal address to bind; peers reach us there."""
    port: int = 0
    connect_timeout_s: float = 5.0
    settle_s: float = 0.5
    """How long a read that was given up may still end by itself before its link is closed."""
    max_links: int = 256
    """Connections from readers at one time."""
    portion_bytes: int = 8 << 20
    """Most that is asked for in one message; reads of several requests take turns in these."""
    window_bytes: int = 32 << 20
    """Most that may be on its way to us from one peer."""
    total_bytes: int = 256 << 20
    """Most that may be on its way to us from all peers."""


@dataclass(frozen=True, slots=True)
class PlaneParts:
    """What all links of a plane share."""

    memory: PageMemory
    guard: ReadGuard
    observer: PlaneObserver
    budget: Budget
    deadlines: Deadlines
    window_bytes: int
    room: int
    """Pages in a portion."""
    key: str
    content: bytes

    def portions_of(self, pages: Sequence[PageRead]) -> tuple[Portion, ...]:
        """In which a read of these travels."""
        return portions(coalesce(pages), self.memory.page_bytes, self.room)


Start = Callable[[str, Sequence[PageRead], float], Transfer | None]
"""Ticket, pages, seconds: as `Link.submit`, where one call can begin it and nothing stands in its
way. None, with nothing done: it is to be checked, cut and submitted."""


def long_way(ticket: str, pages: Sequence[PageRead], timeout_s: float) -> None:
    """A `Start` for a link that cannot do better."""


class Link(Protocol):
    """The reader's end. `run` owns it from connect to close; `submit` may be called at once."""

    closed: bool
    transport: str
    start: Start

    async def run(self, connect_timeout_s: float) -> None:
        """Connect, then stay until the peer leaves or `fence` is called. Never raises for the
        peer's sake."""
        ...

    def submit(self, transfer: Transfer) -> None:
        """Bring it to its end; `transfer` tells which. Never raises."""
        ...

    def give_up(self, transfer: Transfer) -> None:
        """Nobody waits for it any more: ask for nothing more."""
        ...

    def fence(self) -> bool:
        """End the link without awaiting. True: nothing lands in our pages through it any more."""
        ...


class Wiring(Protocol):
    """How an adapter moves bytes."""

    scheme: str
    setting: str
    """The transport that was asked for."""

    def open(self, parts: PlaneParts) -> str:
        """Load the library. The domain part of our address. Raises StartupError, ValueError."""
        ...

    def link(self, address: PlaneAddress) -> Link:
        """A new link. Raises TransferError where the peer cannot be reached in any way."""
        ...

    async def serve(self, stream: FrameStream) -> None:
        """One accepted connection, until the peer leaves or misbehaves."""
        ...

    def close(self) -> None:
        """All links are closed: let the library go."""
        ...
