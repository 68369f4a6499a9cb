"""Messages about workers: registration with an epoch, heartbeats, load.

Load figures are the worker's own truth; the scheduler adds only charges a report had not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.ids import Epoch, WorkerId


@dataclass(frozen=True, slots=True)
class RegisterWorker:
    """A process asks the scheduler for its epoch. Same `incarnation`: same answer again."""

    worker: WorkerId
    role: str
    """'gateway', 'prefill', 'decode' or 'kvpool'."""
    incarnation: str
    """Random per process start."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The epoch of this incarnation, taken by compare-and-set."""

    worker: WorkerId
    epoch: Epoch
    leader_epoch: Epoch


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of engine work: prefill = step_s + token_s*n + pair_s*((n+p)^2 - p^2)."""

    step_s: float
    token_s: float
    pair_s: float
    decode_step_s: float
    """One decode step of one sequence."""
    decode_sequence_s: float
    """Each further sequence in the step."""


MOST_READING: Final = 64
"""Entries of `WorkerLoad.reading`; who reads for more jobs tells of as many."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one job has still to read from a peer."""

    peer: WorkerId
    pages: int


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What a worker has to do and what it has room for, at the moment of the heartbeat."""

    queued_requests: int
    queued_tokens: int
    running_sequences: int
    work_left_s: float
    """Estimated seconds until an arriving job would start."""
    pages_total: int
    pages_free: int
    """Free or cached without a reference: what a new job could get."""
    placement_sequence: int
    """Highest placement seen by this worker."""
    step_tokens: int = 0
    """Of one step of a decode worker, running sequences and prompts together; 0: any number."""
    reading: tuple[Reading, ...] = ()
    """Pages on their way to this worker, or waited for."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step of the engine."""

    new_tokens: int
    """Prompt tokens computed in it."""
    cached_tokens: int
    """Tokens before them."""
    sequences: int
    """That got one token each."""
    context_tokens: int
    """That those attend to, together."""
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One measured read of a peer's pages."""

    peer: WorkerId
    size_bytes: int
    seconds: float
    """As if the reader's card had carried nothing else meanwhile."""


@dataclass(frozen=True, slots=True)
class BlockCount:
    """Anti-entropy: number and sum (mod 2^128, hex) of held block hashes at `sequence`."""

    sequence: int
    blocks: int
    digest: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Alive, with load. Sent every heartbeat_s and once more when the state changes."""

    worker: WorkerId
    role: str
    epoch: Epoch
    sequence: int
    state: str
    """'ready', 'draining' or 'stuck' (no progress); 'ended' once, on the way out."""
    model_digest: str
    layout_digest: str
    block_tokens: int
    plane_address: str
    probe_port: int
    load: WorkerLoad
    cost: CostModel
    blocks: BlockCount
    peers_lost: tuple[WorkerId, ...] = ()
    """Peers that this worker could not reach on the data plane since the last beat."""
    page_bytes: int = 0
    """Size of one page, for transfer estimates; 0: unknown."""
    steps: tuple[StepSample, ...] = ()
    """A few of the steps since the last beat: the scheduler learns from them."""
    links: tuple[LinkSample, ...] = ()
    switchable: bool = False
    """Its supervisor starts it again in the other role when the leading scheduler asks for that."""
    turning: str = ""
    """The role for which it is draining, by such an order; empty otherwise."""


@dataclass(frozen=True, slots=True)
class SwitchRole:
    """The leading scheduler orders a worker to drain and to come back in role `to`. Answered with
    `Acknowledged` or `Refused`; idempotent."""

    worker: WorkerId
    epoch: Epoch
    """The incarnation that is meant: any other one refuses."""
    leader_epoch: Epoch
    to: str
    """'prefill' or 'decode'."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The scheduler declares an incarnation dead (silent, or replaced by a newer epoch)."""

    worker: WorkerId
    role: str
    epoch: Epoch
    leader_epoch: Epoch
    cause: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What the leading scheduler could place right now: told every beat, and on each change."""

    leader_epoch: Epoch
    models: tuple[str, ...]
    """Digests of the models that ready workers serve."""
