"""What can happen to a pool node: every input of its machine.

Values only. `call` is the shell's number for an open request on the bus; the machine answers it
with a `Reply`. Anything may come late, twice or about something nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.wire.blocks import LookupBlocks, OfferBlocks, ReleaseBlocks
from shared.wire.workers import WorkerLost


@dataclass(frozen=True, slots=True)
class OfferArrived:
    """A worker offers sealed blocks."""

    call: int
    offer: OfferBlocks
    patience_s: float
    """Seconds until nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class LookupArrived:
    """A worker asks for blocks. `ticket` is random and not used before."""

    call: int
    lookup: LookupBlocks
    ticket: str


@dataclass(frozen=True, slots=True)
class ReleaseArrived:
    """A reader is done."""

    call: int
    release: ReleaseBlocks


@dataclass(frozen=True, slots=True)
class PullEnded:
    """All bytes of a pull have landed; what each page hashes to, in the order of its reads."""

    pull: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PullFailed:
    """A pull did not deliver. Unless `settled`, bytes may still land in its targets."""

    pull: int
    settled: bool
    code: str


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """Nothing reads on behalf of this open read any more."""

    read: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """An incarnation of a worker is dead: it offers and reads nothing any more."""

    lost: WorkerLost


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class DrainBegun:
    """Take nothing new; end what runs."""


Event = (
    OfferArrived
    | LookupArrived
    | ReleaseArrived
    | PullEnded
    | PullFailed
    | ReadEnded
    | PeerLost
    | Ticked
    | DrainBegun
)
