"""Everything the gateway's core can ask its shell to do. Wishes, in the imperative."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.core.events import Role
from shared.errors import Code
from shared.ids import Attempt, RequestId, WorkerId
from shared.wire.requests import (
    CancelRequest,
    DecodeJob,
    Placement,
    PlacementEnded,
    PlaceRequest,
    PrefillJob,
    ResendTokens,
    WorkerRef,
)
from shared.wire.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Attempt number `attempt` begins; `cause` says why there is another one."""

    request: RequestId
    attempt: Attempt
    cause: str


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """The attempt is over: 'finished', 'cancelled', or the code of its failure."""

    request: RequestId
    attempt: Attempt
    outcome: str


@dataclass(frozen=True, slots=True)
class Place:
    """Ask the scheduler; feed `Placed` or `PlaceUnanswered`."""

    message: PlaceRequest


@dataclass(frozen=True, slots=True)
class ShowPlacement:
    """Where the attempt will run is known."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class SendJob:
    """Ask a worker; feed `JobAnswered` or `JobUnanswered`."""

    role: Role
    worker: WorkerId
    message: DecodeJob | PrefillJob


@dataclass(frozen=True, slots=True)
class AskResend:
    """Ask a worker for tokens; feed `ResendAnswered` or `ResendUnanswered`."""

    role: Role
    worker: WorkerId
    message: ResendTokens


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell a holder; feed `CancelAnswered` or `CancelUnanswered`."""

    role: Role
    worker: WorkerId
    message: CancelRequest


@dataclass(frozen=True, slots=True)
class ReportEnd:
    """Tell the scheduler; feed `EndUnsent` when the bus is down."""

    message: PlacementEnded


@dataclass(frozen=True, slots=True)
class Deliver:
    """The next tokens of the client's stream. With `finish` nothing follows."""

    request: RequestId
    token_ids: tuple[int, ...]
    finish: str | None
    cached_tokens: int | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token where the request asks for them."""
    home: WorkerRef | None = None
    """The decode worker that sent them and so holds the prompt's pages; None: prefill did."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The client's request ends with an error; nothing follows."""

    request: RequestId
    code: Code
    message: str
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Count:
    """Something that happens in bad weather, for a counter: (what, label)."""

    what: str
    label: str


Action = (
    StartAttempt
    | EndAttempt
    | Place
    | ShowPlacement
    | SendJob
    | AskResend
    | Cancel
    | ReportEnd
    | Deliver
    | Fail
    | Count
)
