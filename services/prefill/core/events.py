"""What can happen to a prefill worker: every input of its machine.

Values only. `call` is the shell's number for an open request on the bus; the machine answers it
with a `Reply`. Anything may come late, twice or for a job nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.ids import Attempt, RequestId
from shared.wire.blocks import BlocksFound, LookupBlocks, ReleaseBlocks
from shared.wire.requests import (
    CancelRequest,
    PrefillJob,
    ReleaseLease,
    RenewLeases,
    ResendTokens,
)
from shared.wire.sampling import TokenLogprobs
from shared.wire.workers import WorkerLost


@dataclass(frozen=True, slots=True)
class JobArrived:
    """A gateway asks for a prefill. The tickets are random and not used before."""

    call: int
    job: PrefillJob
    ticket: str
    """Opens the job's pages to its decode worker."""
    offer_ticket: str
    """Opens the job's new blocks to the pool."""
    trace: str = ""
    """Opaque; handed back in `JobOpened`."""
    gateway_epoch: int | None = None
    """Incarnation of the gateway, if it said so."""


@dataclass(frozen=True, slots=True)
class CancelArrived:
    call: int
    cancel: CancelRequest


@dataclass(frozen=True, slots=True)
class ResendArrived:
    call: int
    resend: ResendTokens


@dataclass(frozen=True, slots=True)
class RenewArrived:
    call: int
    renew: RenewLeases


@dataclass(frozen=True, slots=True)
class ReleaseArrived:
    call: int
    release: ReleaseLease


@dataclass(frozen=True, slots=True)
class LookupArrived:
    """Another prefill worker asks for blocks. `ticket` is random and not used before."""

    call: int
    lookup: LookupBlocks
    ticket: str


@dataclass(frozen=True, slots=True)
class LoanReturned:
    """It is done with what a lookup gave it."""

    call: int
    release: ReleaseBlocks


@dataclass(frozen=True, slots=True)
class PoolFound:
    """The answer of a pool node, or of a `peer`, to `Lookup`; its lease lasts until
    `ReleasePool`."""

    request: RequestId
    attempt: Attempt
    found: BlocksFound
    peer: bool = False


@dataclass(frozen=True, slots=True)
class PoolMissed:
    """The pool holds nothing of it, refused, or did not answer."""

    request: RequestId
    attempt: Attempt
    cause: str


@dataclass(frozen=True, slots=True)
class PulledPage:
    """A page that arrived and whose checksum was compared with the pool's."""

    position: int
    checksum: int


@dataclass(frozen=True, slots=True)
class PullEnded:
    """A `Pull` is over, nothing lands any more unless `settled` is False."""

    request: RequestId
    attempt: Attempt
    pages: tuple[PulledPage, ...]
    damaged: int = 0
    """Pages whose checksum did not match."""
    settled: bool = True


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A `RunStep` is over; per item the drawn token or None."""

    step: int
    tokens: tuple[int | None, ...]
    seconds: float
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    """Per item what was asked for; empty when no item asked."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A `RunStep` or `SumPages` raised: no item of it counts."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class PagesSummed:
    """A `SumPages` is over."""

    step: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PagesAcknowledged:
    request: RequestId
    attempt: Attempt
    chunk: int


@dataclass(frozen=True, slots=True)
class PagesRefused:
    """Decode does not want the pages of this attempt."""

    request: RequestId
    attempt: Attempt
    chunk: int
    code: str


@dataclass(frozen=True, slots=True)
class OfferEnded:
    """The pool took what it wanted of an `Offer`, or could not be reached (`kept` 0)."""

    request: RequestId
    attempt: Attempt
    kept: int


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """A peer's read of our pages is over, however it went."""

    read: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    lost: WorkerLost


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """Take no new jobs; finish what is here."""


@dataclass(frozen=True, slots=True)
class DrainExpired:
    """The drain time is over: give up whatever is left."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: sweep leases, enforce deadlines."""


Event = (
    JobArrived
    | CancelArrived
    | ResendArrived
    | RenewArrived
    | ReleaseArrived
    | LookupArrived
    | LoanReturned
    | PoolFound
    | PoolMissed
    | PullEnded
    | StepEnded
    | StepFailed
    | PagesSummed
    | PagesAcknowledged
    | PagesRefused
    | OfferEnded
    | ReadEnded
    | PeerLost
    | DrainStarted
    | DrainExpired
    | Tick
)
