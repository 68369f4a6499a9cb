"""What a pool node's machine wants done: every output, in the order to begin it.

Values only. The shell (or a simulation) carries them out and reports back with events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.dataplane.plane import PageRead
from shared.kv.cache import Removed, Stored
from shared.wire.blocks import BlocksFound, BlocksKept
from shared.wire.requests import Acknowledged, Refused, WorkerRef

Answer = BlocksKept | BlocksFound | Acknowledged | Refused


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the bus request `call`."""

    call: int
    message: Answer


@dataclass(frozen=True, slots=True)
class Pull:
    """Read pages from `owner` and hash what landed; ends in `PullEnded` or `PullFailed`."""

    pull: int
    call: int
    """The request that it serves, for the trace."""
    owner: WorkerRef
    ticket: str
    reads: tuple[PageRead, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class PublishBlocks:
    """The set of blocks that can be found here changed."""

    events: tuple[Stored | Removed, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """A fact for the trace of the bus request `call`, in monotonic seconds."""

    call: int
    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, str | int | float | bool]


Action = Reply | Pull | PublishBlocks | Traced
