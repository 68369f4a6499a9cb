"""Messages about one request: placement, jobs, pages, tokens, cancellation.

Commands are imperative, facts in the past tense. Each names (request, attempt) and, when a
worker sends it, (worker, epoch); applying one twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.ids import Attempt, BlockHash, Epoch, Generation, PageId, RequestId, WorkerId
from shared.wire.sampling import Sampling as Sampling
from shared.wire.sampling import TokenLogprobs

BETWEEN_RANKS: Final = "|"
"""Joins the plane addresses of a worker's ranks."""

TOP_PRIORITY: Final = 100
"""Priorities of requests and jobs are -TOP_PRIORITY to TOP_PRIORITY, higher is sooner."""


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """One incarnation of a worker, and how its pages are reached."""

    worker: WorkerId
    epoch: Epoch
    plane_address: str
    """Opaque to everyone but the data plane adapter."""

    @property
    def ranks(self) -> int:
        """Tensor parallel ranks of this worker: each has an address of its own."""
        return self.plane_address.count(BETWEEN_RANKS) + 1


@dataclass(frozen=True, slots=True)
class Refused:
    """A typed no, before anything ran. `code` is a value of shared.errors.Code."""

    code: str
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """Yes; the job is held by this incarnation. Repeating the job gives the same answer."""

    worker: WorkerId
    epoch: Epoch


# -- placement: gateway -> scheduler -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """Where should this request run? Carries block names, never tokens."""

    request: RequestId
    attempt: Attempt
    prompt_tokens: int
    max_tokens: int
    block_hashes: tuple[BlockHash, ...]
    """Chained names of the full blocks of prompt (+ emitted) tokens."""
    model_digest: str
    route: str
    """'auto', 'disaggregated' or 'colocated'."""
    excluded: tuple[WorkerRef, ...]
    """Incarnations that failed this request before."""
    deadline_s: float
    failures: int = 0
    """Attempts of this request that failed after they had begun to run."""
    signature: str = ""
    """Digest of the client's prompt: knows the same request again, tells nothing about it."""
    near: WorkerRef | None = None
    """A decode worker that holds the prompt's pages: colocated there, if it still serves."""
    tenant: str = ""
    """Whose fair share it counts against."""
    priority: int = 0
    """-100..100, higher is sooner."""
    affinity_key: str = ""
    """Requests of one session: they prefer the pair of the last one."""
    expected_output_tokens: int = 0
    """A forecast, never a limit. 0: unknown."""
    ttft_slo_s: float = 0.0
    tpot_slo_s: float = 0.0
    """Latency objectives of this request. 0: those of the scheduler."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One option that was considered, with every term of its score, in seconds."""

    prefill: WorkerId | None
    decode: WorkerId
    score_s: float
    """What the policy made least; its own unit for a policy that does not count seconds."""
    terms: dict[str, float]
    note: str
    lost: str = ""
    """Why another one was chosen; empty for the chosen one."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision, its promise and its reasons."""

    request: RequestId
    attempt: Attempt
    sequence: int
    """Dense number of this placement; heartbeats report the highest one seen."""
    leader_epoch: Epoch
    route: str
    """'disaggregated' or 'colocated'."""
    prefill: WorkerRef | None
    decode: WorkerRef
    kvpool: WorkerRef | None
    """A pool node that may hold more of the prefix."""
    cached_blocks: int
    """Blocks of the prompt believed to be on the device that will prefill."""
    estimated_ttft_s: float
    reason: str
    candidates: tuple[Candidate, ...]
    policy: str = ""
    """Name of the rule that chose."""
    fetch_from: WorkerRef | None = None
    """Who has further blocks of the prefix that are cheaper to copy than to compute."""
    fetch_blocks: int = 0
    """How many, after `cached_blocks`."""


@dataclass(frozen=True, slots=True)
class PlacementEnded:
    """The gateway tells the scheduler that an attempt no longer occupies anyone."""

    request: RequestId
    attempt: Attempt
    outcome: str
    failed: tuple[WorkerRef, ...] = ()
    """Incarnations that did not answer or failed this attempt."""
    signature: str = ""
    died: tuple[WorkerRef, ...] = ()
    """Of `failed`, incarnations that died while they computed this attempt."""
    emitted: int = 0
    """Tokens that this attempt had added to the client's stream."""
    ttft_s: float = 0.0
    """From the placement to the first token, as the gateway saw it. 0: there was none."""
    tpot_s: float = 0.0
    """Mean time of each further token of this attempt. 0: there was none."""


# -- jobs: gateway -> workers --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """Reserve pages and generate. With `prefill` None decode computes the prompt itself."""

    request: RequestId
    attempt: Attempt
    placement_sequence: int
    gateway: WorkerId
    tokens: tuple[int, ...]
    """Prompt, then tokens already emitted in earlier attempts."""
    first_index: int
    """Index of the next token in the client's stream (= tokens already emitted)."""
    sampling: Sampling
    namespace: str
    """First link of the block hash chain: the tenant's space."""
    prefill: WorkerRef | None
    deadline_s: float
    epoch: Epoch = Epoch(0)  # noqa: RUF009 - an int
    """The incarnation that was placed: another one under its name refuses. 0: any."""
    priority: int = 0
    """-100 to 100, higher is sooner: order of the batch and of giving way."""
    kvpool: WorkerRef | None = None
    """A pool node that may keep this sequence's blocks while it had to give way."""


@dataclass(frozen=True, slots=True)
class PrefillJob:
    """Compute the prompt chunk by chunk, seal its pages for `decode`, sample one token."""

    request: RequestId
    attempt: Attempt
    placement_sequence: int
    gateway: WorkerId
    tokens: tuple[int, ...]
    first_index: int
    sampling: Sampling
    namespace: str
    decode: WorkerRef
    kvpool: WorkerRef | None
    deadline_s: float
    epoch: Epoch = Epoch(0)  # noqa: RUF009 - an int
    """As in `DecodeJob`."""
    priority: int = 0
    """-100 to 100, higher is sooner: its turn among those that wait."""
    fetch_from: WorkerRef | None = None
    """Whom placement chose to copy blocks from; None: `kvpool` is asked for all there may be."""
    fetch_until: int = 0
    """With `fetch_from`: leading blocks of the prompt that the copy was planned for."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End this attempt (and older ones) now. Answered with `Ended`; idempotent."""

    request: RequestId
    attempt: Attempt
    cause: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The holder holds nothing of (request, attempt) any more, or never did."""

    request: RequestId
    attempt: Attempt


# -- the handoff: prefill <-> decode -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageRef:
    """One sealed page, as a reader needs it to fetch and to prove it."""

    position: int
    """Block index in the sequence: token positions [position*block_tokens, ...)."""
    page: PageId
    generation: Generation
    tokens: int
    """Valid token positions, 1..block_tokens; only the last page is partial."""
    checksum: int
    """xxh3-64 over the whole page."""
    block: BlockHash | None
    """Name of a full block; None for a partial page."""


@dataclass(frozen=True, slots=True)
class PagesReady:
    """A chunk is sealed and leased. Sent until acknowledged; order does not matter."""

    request: RequestId
    attempt: Attempt
    owner: WorkerRef
    ticket: str
    """Random token that opens these pages on the data plane; dies with the lease."""
    chunk: int
    pages: tuple[PageRef, ...]
    prompt_pages: int
    """How many pages the whole prompt has; decode is complete when it has all."""
    lease_s: float
    first_token: int | None
    """Set in the last chunk: the token that was sampled and sent to the gateway."""
    first_finish: str | None
    """'stop' or 'length' when the first token already ended the request."""
    cached_tokens: int
    """Prompt tokens that prefill did not compute (device, pool)."""
    first_logprobs: TokenLogprobs | None = None
    """Of the first token, where the job asked for them."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The message was taken in (again)."""


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """Names a lease: pages sealed for one attempt of one request."""

    request: RequestId
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class RenewLeases:
    """Decode still needs these pages. Answered with `LeasesRenewed`."""

    reader: WorkerId
    epoch: Epoch
    leases: tuple[LeaseKey, ...]


@dataclass(frozen=True, slots=True)
class LeasesRenewed:
    """`gone` are leases (renewed or asked) that the owner does not hold: stop waiting."""

    gone: tuple[LeaseKey, ...]


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """The reader is done (committed, refused, cancelled). Idempotent; answered `Acknowledged`."""

    reader: WorkerId
    epoch: Epoch
    lease: LeaseKey
    reason: str


@dataclass(frozen=True, slots=True)
class PrefillFailed:
    """Prefill tells decode that no more pages of this attempt will come."""

    request: RequestId
    attempt: Attempt
    code: str


# -- tokens: workers -> gateway ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """New tokens of one sequence, contiguous from `index` in the client's stream."""

    request: RequestId
    attempt: Attempt
    index: int
    token_ids: tuple[int, ...]
    finish: str | None
    """'stop' | 'length' after the last token; else None."""
    cached_tokens: int | None = None
    """Set in the first entry of an attempt: prompt tokens found in a cache."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token id where the job asked for them, else none."""


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """One step's tokens of all sequences of one gateway."""

    worker: WorkerId
    epoch: Epoch
    entries: tuple[TokenEntry, ...]


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A worker gave up an attempt; the gateway decides about another one."""

    request: RequestId
    attempt: Attempt
    worker: WorkerId
    epoch: Epoch
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ResendTokens:
    """The gateway misses tokens from `index` on. Answered with a `TokenEntry`, or `Refused`
    (`unknown_request`) when this incarnation knows nothing of the attempt. An entry with no
    token ids and no finish means: alive, nothing new yet."""

    request: RequestId
    attempt: Attempt
    index: int
