"""What a prefill worker's machine wants done: every output, in the order to begin it.

Values only. The shell (or a simulation) carries them out and reports back with events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.dataplane.plane import PageRead
from shared.engine.batch import StepItem
from shared.ids import Attempt, PageId, RequestId, WorkerId
from shared.kv.radix import Removed, Stored
from shared.wire.blocks import BlocksFound, LookupBlocks, OfferBlocks, ReleaseBlocks
from shared.wire.requests import (
    Accepted,
    Acknowledged,
    Ended,
    JobFailed,
    LeasesRenewed,
    PagesReady,
    PrefillFailed,
    Refused,
    TokenChunk,
    TokenEntry,
    WorkerRef,
)

Answer = Accepted | Refused | Ended | LeasesRenewed | Acknowledged | TokenEntry | BlocksFound


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the bus request `call`."""

    call: int
    message: Answer


@dataclass(frozen=True, slots=True)
class JobOpened:
    """A job was taken in: its span begins."""

    request: RequestId
    attempt: Attempt
    trace: str


@dataclass(frozen=True, slots=True)
class JobClosed:
    """A job is over: stop sending its pages; its span ends. A lookup or pull that is under way
    goes on and is still reported."""

    request: RequestId
    attempt: Attempt
    outcome: str
    """'released', 'cancelled', 'superseded', 'expired', 'refused', 'lost' or 'failed'."""
    code: str | None


@dataclass(frozen=True, slots=True)
class Lookup:
    """Ask the pool, or a `peer`: another prefill worker. Ends in `PoolFound` or `PoolMissed`."""

    request: RequestId
    attempt: Attempt
    pool: WorkerRef
    lookup: LookupBlocks
    peer: bool = False


@dataclass(frozen=True, slots=True)
class PullPage:
    """One page to fetch, and what it must hash to."""

    position: int
    read: PageRead
    checksum: int


@dataclass(frozen=True, slots=True)
class Pull:
    """Read pages from the pool and verify them; ends in `PullEnded`."""

    request: RequestId
    attempt: Attempt
    source: BlocksFound
    pages: tuple[PullPage, ...]
    peer: bool = False


@dataclass(frozen=True, slots=True)
class ReleasePool:
    """Tell the pool, or the peer, that the lease of a lookup is not needed any more."""

    pool: WorkerRef
    release: ReleaseBlocks
    peer: bool = False


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run one engine step; ends in `StepEnded` or `StepFailed`. One at a time."""

    step: int
    items: tuple[StepItem, ...]


@dataclass(frozen=True, slots=True)
class SumPages:
    """Checksum pages on the engine thread; ends in `PagesSummed` or `StepFailed`."""

    step: int
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class SendPages:
    """Request to decode, repeated until it answers or the job closes; ends in
    `PagesAcknowledged` or `PagesRefused`."""

    decode: WorkerRef
    ready: PagesReady


@dataclass(frozen=True, slots=True)
class EmitTokens:
    """Publish first tokens to a gateway, at once."""

    gateway: WorkerId
    chunk: TokenChunk


@dataclass(frozen=True, slots=True)
class FailJob:
    """Tell the gateway and the waiting decode worker that no pages will come."""

    gateway: WorkerId
    failed: JobFailed
    decode: WorkerRef
    notice: PrefillFailed


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer new blocks to the pool in the background; ends in `OfferEnded`."""

    request: RequestId
    attempt: Attempt
    pool: WorkerRef
    offer: OfferBlocks


@dataclass(frozen=True, slots=True)
class PublishBlocks:
    """The set of blocks that can be found here changed."""

    events: tuple[Stored | Removed, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """A fact for the trace of a job, in monotonic seconds."""

    request: RequestId
    attempt: Attempt
    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, str | int | float | bool]


Action = (
    Reply
    | JobOpened
    | JobClosed
    | Lookup
    | Pull
    | ReleasePool
    | RunStep
    | SumPages
    | SendPages
    | EmitTokens
    | FailJob
    | Offer
    | PublishBlocks
    | Traced
)
