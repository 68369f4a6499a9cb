"""Messages about cached blocks: events for the scheduler's index, and the KV pool's verbs.

Events are numbered densely per (worker, epoch) from 1; a gap means: ask for a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.ids import BlockHash, Epoch, WorkerId
from shared.wire.requests import PageRef, WorkerRef


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """These blocks can now be found at the worker. `parent` is the block before the first."""

    worker: WorkerId
    epoch: Epoch
    sequence: int
    tier: str
    """'device' or 'host'."""
    parent: BlockHash | None
    blocks: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """These blocks can no longer be found in this tier of the worker."""

    worker: WorkerId
    epoch: Epoch
    sequence: int
    tier: str
    blocks: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """The worker dropped its whole cache."""

    worker: WorkerId
    epoch: Epoch
    sequence: int


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A scheduler asks a worker for part `chunk` of all blocks it holds: of a new snapshot for
    part 0, else of the one that is true at event number `sequence`."""

    chunk: int
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """Part `chunk` of `chunks`, true at event number `sequence`."""

    worker: WorkerId
    epoch: Epoch
    sequence: int
    tier: str
    chunk: int
    chunks: int
    blocks: tuple[BlockHash, ...]


# -- the KV pool ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfferBlocks:
    """A worker offers sealed blocks. The pool pulls those it lacks, verifies them, and answers
    `BlocksKept`; `owner` keeps the pages readable under `ticket` until that answer."""

    owner: WorkerRef
    ticket: str
    namespace: str
    layout_digest: str
    pages: tuple[PageRef, ...]
    """Full blocks at consecutive positions: from 0, or from the block after `parent`."""
    parent: BlockHash | None = None
    """Block before pages[0]; the pool stores nothing when it does not hold that one."""


@dataclass(frozen=True, slots=True)
class BlocksKept:
    """Answer to `OfferBlocks` once all wanted pages were pulled and verified (or not):
    the owner may release `ticket`. `kept` counts blocks the pool now holds of the offer."""

    ticket: str
    kept: int


@dataclass(frozen=True, slots=True)
class LookupBlocks:
    """Which of these blocks, in order from the first, does the pool hold? Takes a lease."""

    reader: WorkerRef
    layout_digest: str
    blocks: tuple[BlockHash, ...]
    first_position: int
    """Block index of blocks[0] in the reader's sequence."""


@dataclass(frozen=True, slots=True)
class BlocksFound:
    """The longest prefix that is held, readable on `owner`'s plane with `ticket`."""

    owner: WorkerRef
    ticket: str
    lease_s: float
    pages: tuple[PageRef, ...]


@dataclass(frozen=True, slots=True)
class ReleaseBlocks:
    """The reader of a lookup is done. Answered with `Acknowledged`; idempotent."""

    reader: WorkerId
    ticket: str
    corrupted: tuple[BlockHash, ...] = ()
    """Blocks of the lookup whose bytes did not have their checksum: the pool forgets them."""
