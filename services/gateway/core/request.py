"""The state of one client request: its stream, its current attempt and who holds a share of it.

Owns no decisions; `machine.py` and its neighbours change these fields.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from services.gateway.core.events import NO_HINTS, Hints, Role
from services.gateway.core.ordering import TokenOrder
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.kv.hashing import CacheIdentity
from shared.wire.requests import Placement, Sampling, WorkerRef

STORY_LINES: Final = 64
NONE_YET: Final = Attempt(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers by which the gateway waits, asks again and gives up."""

    identity: CacheIdentity
    attempts: int = 3
    """Attempts in a row that may fail once a worker had taken the job."""
    progress_tokens: int = 32
    """An attempt that added more before it failed was not in vain: the count begins anew."""
    stall_s: float = 1.0
    """No token for so long: ask the holders."""
    gap_s: float = 0.2
    """An entry is missing for so long: ask for it."""
    place_patience_s: float = 5.0
    """How long a fresh request waits for an absent scheduler."""
    queue_patience_s: float = 60.0
    """How long a fresh request waits in line for free pages."""
    resume_patience_s: float = 20.0
    """The same after a worker was lost: somebody has already waited for this answer."""
    backoff_s: float = 0.1
    backoff_limit_s: float = 1.0
    scheduler_backoff_limit_s: float = 0.25
    """Asking for a scheduler costs it nothing while it is away: a new one is found soon."""
    reconnect_grace_s: float = 5.0
    """After our connection came back, peers may still be reconnecting: silence is no proof."""
    handoff_grace_s: float = 3.0
    """Prefill died: decode may go on by itself, or say that it cannot, for so long."""
    silences: int = 2
    """Unanswered questions in a row that prove a peer dead."""
    settle_tries: int = 6


@dataclass(slots=True)
class Holder:
    """A worker that has, or may have, a share of the attempt."""

    role: Role
    ref: WorkerRef
    accepted: bool = False
    asked_s: float | None = None
    """When the open question (resend) was sent; None: no question is open."""
    next_ask_s: float = 0.0
    silences: int = 0
    unknown: bool = False
    """It said that it knows nothing of the attempt."""
    job_due_s: float | None = None
    """The job could not be sent or confirmed: send it again at this instant."""


@dataclass(slots=True)
class Request:
    """One client request from admission to its end."""

    id: RequestId
    prompt: tuple[int, ...]
    sampling: Sampling
    route: str
    deadline_s: float
    opened_s: float
    order: TokenOrder
    no_queue: bool = False
    """The client prefers a refusal to waiting in line."""
    near: WorkerRef | None = None
    """Where the prompt's pages are; asked for in the first attempt."""
    priority: int = 0
    hints: Hints = NO_HINTS
    attempt: Attempt = NONE_YET
    placement: Placement | None = None
    placed_s: float = 0.0
    ttft_s: float = 0.0
    """Of this attempt, from its placement; 0 until its first token."""
    last_s: float = 0.0
    """When the newest tokens of this attempt came."""
    holders: dict[Role, Holder] = field(default_factory=dict)
    ran: bool = False
    """A worker accepted a job of this attempt."""
    decoding: bool = False
    """Decode has sent tokens of this attempt: prefill is no longer needed."""
    first_index: int = 0
    """Tokens that were emitted when the attempt began."""
    failures: int = 0
    """Attempts in a row that failed after they ran, and added little."""
    excluded: tuple[WorkerRef, ...] = ()
    place_due_s: float | None = None
    """Ask the scheduler (again) at this instant; None: asked, or placed."""
    backoff_s: float = 0.0
    patience_until_s: float | None = None
    progress_s: float = 0.0
    """Last token, or last proof that a holder is at work."""
    gap_since_s: float | None = None
    handoff_until_s: float | None = None
    died: tuple[WorkerRef, ...] = ()
    """Who died while it computed this attempt."""
    cached_tokens: int | None = None
    signature: str = ""
    """Digest of the prompt, once it was asked where to run."""
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LINES))

    @property
    def started(self) -> bool:
        """The client's stream has tokens."""
        return self.order.next_index > 0

    @property
    def attempt_started(self) -> bool:
        """The current attempt has added tokens to the stream."""
        return self.emitted > 0

    @property
    def emitted(self) -> int:
        """Tokens that the current attempt has added to the stream."""
        return self.order.next_index - self.first_index

    @property
    def tpot_s(self) -> float:
        """Mean time of each token of this attempt after its first; 0 when there is none."""
        further = self.emitted - 1
        if further < 1 or self.ttft_s <= 0.0:
            return 0.0
        return max(0.0, self.last_s - self.placed_s - self.ttft_s) / further

    def sender(self, worker: WorkerId, epoch: Epoch) -> Holder | None:
        """The holder that this incarnation is."""
        for holder in self.holders.values():
            if (holder.ref.worker, holder.ref.epoch) == (worker, epoch):
                return holder
        return None

    def begin_attempt(self, now: float) -> None:
        """Forget everything of the last attempt; the stream goes on."""
        self.attempt = Attempt(self.attempt + 1)
        self.order.begin(self.attempt)
        self.first_index = self.order.next_index
        self.placement = None
        self.ttft_s = 0.0
        self.holders = {}
        self.ran = False
        self.decoding = False
        self.progress_s = now
        self.gap_since_s = None
        self.handoff_until_s = None
        self.died = ()

    def note(self, now: float, text: str) -> None:
        """One line of the request's life."""
        self.story.append(f"{now:.3f} attempt {self.attempt}: {text}")
