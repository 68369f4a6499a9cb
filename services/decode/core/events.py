"""What can happen to the decode core. Everything that arrives from outside carries a `reply`
number where an answer is due; the shell keeps what belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import Code
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire.blocks import BlocksFound
from shared.wire.requests import (
    CancelRequest,
    DecodeJob,
    LeaseKey,
    PagesReady,
    PrefillFailed,
    ResendTokens,
    WorkerRef,
)
from shared.wire.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class JobArrived:
    """A gateway wants this sequence generated."""

    reply: int
    job: DecodeJob
    gateway_epoch: Epoch | None = None
    ticket: str = ""
    """Random: opens this sequence's pages to the pool. Empty: nothing is offered."""


@dataclass(frozen=True, slots=True)
class CancelArrived:
    reply: int
    cancel: CancelRequest


@dataclass(frozen=True, slots=True)
class ResendArrived:
    reply: int
    resend: ResendTokens


@dataclass(frozen=True, slots=True)
class PagesArrived:
    """Prefill sealed a chunk; `link` is the trace context of that chunk."""

    reply: int
    ready: PagesReady
    link: str = ""


@dataclass(frozen=True, slots=True)
class PrefillFailedArrived:
    reply: int
    failure: PrefillFailed


@dataclass(frozen=True, slots=True)
class PullEnded:
    """A read is over: nothing lands any more, unless `settled` is False."""

    pull: int
    error: Code | None
    settled: bool = True
    bytes: int = 0
    runs: int = 0
    transport: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """Checksums of the pulled pages as stored, in the order of the pull. Empty: not computed."""

    pull: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Checksummed:
    """Checksums of pages that wait to be sealed, in order. Empty: not computed."""

    seal: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepEnded:
    """Per item of the step the drawn token, or None where nothing was to be drawn."""

    step: int
    tokens: tuple[int | None, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    """Per item what was asked for; empty when no item asked."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """No item of the step advanced."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class LeasesAnswered:
    """A prefill worker answered a renewal that was asked at `asked_s`."""

    peer: WorkerRef
    asked_s: float
    gone: tuple[LeaseKey, ...]


@dataclass(frozen=True, slots=True)
class ReleaseAcknowledged:
    lease: LeaseKey


@dataclass(frozen=True, slots=True)
class OfferEnded:
    """The pool is done with the pages of an offer; it keeps so many leading blocks of it."""

    request: RequestId
    attempt: Attempt
    kept: int


@dataclass(frozen=True, slots=True)
class PoolAnswered:
    """What the pool has of what was asked for; None: nothing, or no answer."""

    fetch: int
    request: RequestId
    attempt: Attempt
    found: BlocksFound | None


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """The pool touches the pages of this read no more."""

    read: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """This incarnation, and every older one, of a worker is dead."""

    worker: WorkerId
    role: str
    epoch: Epoch
    replaced: bool = False
    """A newer incarnation is there."""


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """Take nothing new; finish what runs."""


@dataclass(frozen=True, slots=True)
class DrainExpired:
    """Hand over what still runs."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = (
    JobArrived
    | CancelArrived
    | ResendArrived
    | PagesArrived
    | PrefillFailedArrived
    | PullEnded
    | Verified
    | Checksummed
    | StepEnded
    | StepFailed
    | LeasesAnswered
    | ReleaseAcknowledged
    | OfferEnded
    | PoolAnswered
    | ReadEnded
    | PeerLost
    | DrainStarted
    | DrainExpired
    | Tick
)
