"""What the decode core asks of its shell. The shell adds I/O and time, never a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.dataplane.plane import PageRead
from shared.engine.batch import StepItem
from shared.errors import Code
from shared.ids import Attempt, PageId, RequestId, WorkerId
from shared.kv.cache import Removed, Stored
from shared.wire.blocks import LookupBlocks, OfferBlocks, ReleaseBlocks
from shared.wire.requests import (
    Accepted,
    Acknowledged,
    Ended,
    LeaseKey,
    Refused,
    TokenEntry,
    WorkerRef,
)

Answer = Accepted | Acknowledged | Ended | Refused | TokenEntry
Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the message that came with this reply number. Once per number, maybe later."""

    reply: int
    message: Answer


@dataclass(frozen=True, slots=True)
class Pull:
    """Read pages from `peer`; report PullEnded exactly once, whatever happens."""

    pull: int
    peer: WorkerRef
    ticket: str
    reads: tuple[PageRead, ...]


@dataclass(frozen=True, slots=True)
class Verify:
    """Checksum the pages that this pull filled; report Verified exactly once."""

    pull: int
    pages: tuple[PageId, ...]
    ranks: int = 1
    """Of the owner: its checksums are sums over the pieces that they hold."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Checksum own full pages; report Checksummed exactly once."""

    seal: int
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run one engine step; report StepEnded or StepFailed exactly once. Never two at a time."""

    step: int
    items: tuple[StepItem, ...]


@dataclass(frozen=True, slots=True)
class EmitTokens:
    """One TokenChunk for one gateway."""

    gateway: WorkerId
    entries: tuple[TokenEntry, ...]


@dataclass(frozen=True, slots=True)
class FailJob:
    """Tell the gateway that this worker gave the attempt up."""

    gateway: WorkerId
    request: RequestId
    attempt: Attempt
    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class RenewLeases:
    """Ask once; report LeasesAnswered if an answer comes."""

    peer: WorkerRef
    leases: tuple[LeaseKey, ...]
    asked_s: float


@dataclass(frozen=True, slots=True)
class Release:
    """Ask once; report ReleaseAcknowledged if it was acknowledged. The core asks again."""

    peer: WorkerRef
    lease: LeaseKey
    reason: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer blocks to the pool in the background; report OfferEnded exactly once."""

    request: RequestId
    attempt: Attempt
    pool: WorkerRef
    offer: OfferBlocks


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the pool once; report PoolAnswered exactly once."""

    fetch: int
    request: RequestId
    attempt: Attempt
    pool: WorkerRef
    lookup: LookupBlocks


@dataclass(frozen=True, slots=True)
class ReleasePool:
    """Tell the pool that the lease of a lookup is not needed any more."""

    pool: WorkerRef
    release: ReleaseBlocks


@dataclass(frozen=True, slots=True)
class PublishBlocks:
    """Changes of what can be found here, in order."""

    events: tuple[Stored | Removed, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """A finished span of this attempt, under its job's span."""

    request: RequestId
    attempt: Attempt
    name: str
    start_s: float
    end_s: float
    attributes: Attributes
    link: str = ""
    events: tuple[tuple[float, str], ...] = ()
    """Moments inside it: monotonic second and name."""


@dataclass(frozen=True, slots=True)
class JobClosed:
    """An accepted attempt is over here; its job span ends."""

    request: RequestId
    attempt: Attempt
    outcome: str
    attributes: Attributes


Action = (
    Reply
    | Pull
    | Verify
    | Checksum
    | RunStep
    | EmitTokens
    | FailJob
    | RenewLeases
    | Release
    | Offer
    | LookUp
    | ReleasePool
    | PublishBlocks
    | Traced
    | JobClosed
)
