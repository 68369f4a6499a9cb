"""Everything that can happen to the gateway's core. Facts, in the past tense."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shared.ids import Attempt, RequestId, WorkerId
from shared.wire.requests import (
    Accepted,
    JobFailed,
    Placement,
    PlacementEnded,
    Refused,
    Sampling,
    TokenChunk,
    TokenEntry,
    WorkerRef,
)
from shared.wire.workers import WorkerLost


class Role(StrEnum):
    """The two kinds of workers that a gateway talks to."""

    PREFILL = "prefill"
    DECODE = "decode"


class Silence(StrEnum):
    """Why a question to a peer got no answer."""

    DISCONNECTED = "disconnected"
    """Our own connection is down: says nothing about the peer."""
    NO_RESPONDER = "no_responder"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    """An answer that is not one: not a message, or of the wrong type."""
    TOO_LARGE = "too_large"
    """The question itself does not fit the bus; it was never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the client says about its request; empty or 0: nothing."""

    affinity_key: str = ""
    """Requests of one session want to meet where the last one was."""
    expected_tokens: int = 0
    """Of the whole answer: a forecast, never a limit."""
    ttft_slo_s: float = 0.0
    tpot_slo_s: float = 0.0


NO_HINTS: Final = Hints()


@dataclass(frozen=True, slots=True)
class Opened:
    """A validated, tokenised client request."""

    request: RequestId
    prompt: tuple[int, ...]
    sampling: Sampling
    route: str
    deadline_s: float
    """Monotonic instant for all attempts together."""
    no_queue: bool = False
    """The client prefers a refusal to waiting in line."""
    near: WorkerRef | None = None
    """A further choice of a request: the decode worker that holds the prompt's pages."""
    choices: int = 1
    """So many open requests this will be in all; 0: it was counted with the first one."""
    priority: int = 0
    """-100 to 100, higher is sooner."""
    hints: Hints = NO_HINTS


@dataclass(frozen=True, slots=True)
class Closed:
    """The request is over for a reason outside the cluster: 'stop' (a stop string matched),
    'client_gone', 'client_too_slow', 'draining', 'internal'."""

    request: RequestId
    cause: str


@dataclass(frozen=True, slots=True)
class Placed:
    """The scheduler answered."""

    request: RequestId
    attempt: Attempt
    answer: Placement | Refused


@dataclass(frozen=True, slots=True)
class PlaceUnanswered:
    request: RequestId
    attempt: Attempt
    silence: Silence


@dataclass(frozen=True, slots=True)
class JobAnswered:
    request: RequestId
    attempt: Attempt
    role: Role
    answer: Accepted | Refused


@dataclass(frozen=True, slots=True)
class JobUnanswered:
    request: RequestId
    attempt: Attempt
    role: Role
    silence: Silence


@dataclass(frozen=True, slots=True)
class TokensArrived:
    chunk: TokenChunk


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A worker gave up an attempt."""

    failure: JobFailed


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """The scheduler declared an incarnation dead."""

    lost: WorkerLost


@dataclass(frozen=True, slots=True)
class ResendAnswered:
    request: RequestId
    attempt: Attempt
    role: Role
    answer: TokenEntry | Refused


@dataclass(frozen=True, slots=True)
class ResendUnanswered:
    request: RequestId
    attempt: Attempt
    role: Role
    silence: Silence


@dataclass(frozen=True, slots=True)
class CancelAnswered:
    """A holder holds nothing any more (or is not there any more)."""

    request: RequestId
    attempt: Attempt
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class CancelUnanswered:
    request: RequestId
    attempt: Attempt
    worker: WorkerId
    silence: Silence


@dataclass(frozen=True, slots=True)
class EndUnsent:
    """The scheduler could not be told: the bus is down."""

    message: PlacementEnded


@dataclass(frozen=True, slots=True)
class BusReturned:
    """The connection came back; messages may have been missed, peers may still be away."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""


Event = (
    Opened
    | Closed
    | Placed
    | PlaceUnanswered
    | JobAnswered
    | JobUnanswered
    | TokensArrived
    | AttemptFailed
    | WorkerDied
    | ResendAnswered
    | ResendUnanswered
    | CancelAnswered
    | CancelUnanswered
    | EndUnsent
    | BusReturned
    | Ticked
)
