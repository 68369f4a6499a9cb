"""Messages for people who look: what the scheduler sees of the cluster, figures of one process.

Asked only while somebody looks; every answer is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.ids import Epoch, WorkerId
from shared.wire.workers import CostModel, WorkerLoad

MOST_WORKERS_SEEN: Final = 512
MOST_PREFIXES_SEEN: Final = 64
MOST_HOLDERS_SEEN: Final = 32
MOST_SAMPLES: Final = 512


@dataclass(frozen=True, slots=True)
class AskCluster:
    """Whoever leads answers with ClusterSeen."""

    prefixes: int
    """How many of the hottest prefixes to tell of."""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """One incarnation as its last heartbeat and the scheduler describe it."""

    worker: WorkerId
    role: str
    epoch: Epoch
    state: str
    """'ready', 'draining', 'stuck', or 'suspected': somebody could not use it."""
    age_s: float
    """Since it was last heard."""
    model_digest: str
    page_bytes: int
    block_tokens: int
    load: WorkerLoad
    cost: CostModel
    """As learnt from what its steps took."""
    charged_tokens: int
    """Of prompts placed there that it has not reported yet."""
    blocks: int
    """Of its cache, that the prefix index knows."""
    turning: str = ""
    """The role for which it is draining."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a block, and where: 'device' or 'host'."""

    worker: WorkerId
    tier: str


@dataclass(frozen=True, slots=True)
class PrefixSeen:
    """A beginning that many prompts share."""

    block: str
    """Name of its last block."""
    depth: int
    """Blocks."""
    per_s: float
    """Requests that begin with it, lately."""
    copies: int
    """Made on purpose."""
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """Everybody, as far as the bound allows."""

    leader: WorkerId
    leader_epoch: Epoch
    workers: tuple[WorkerSeen, ...]
    more_workers: int
    prefixes: tuple[PrefixSeen, ...]
    index_blocks: int
    index_bytes: int


@dataclass(frozen=True, slots=True)
class AskFigures:
    """Names of metrics, as a scrape would show them; unknown ones have no samples."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric, in the unit of its name."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a process counts."""

    samples: tuple[Sample, ...]
