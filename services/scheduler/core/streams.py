"""One worker's event stream as far as it was applied, and the snapshot that may be under way.

Owns numbers and digests; what the blocks mean to lookups is the index's matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from shared.ids import BlockHash, Epoch
from shared.kv.hashing import NAME_BYTES
from shared.wire.blocks import BlocksCleared, BlocksRemoved, BlocksStored

BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared

DIGEST_MODULUS: Final = 1 << (8 * NAME_BYTES)
MOST_HELD: Final = 1024
WINDOW: Final = 16_384
"""An event so far ahead of the last one is not waited for: a snapshot tells more."""
MOST_PARTS: Final = 65_536
MOST_SNAPSHOT_BLOCKS: Final = 1 << 23
TIERS: Final = ("device", "host")
_PERMITS: Final = 4
_MOST_PATIENCE: Final = 64


@dataclass(slots=True)
class Holding:
    """What one worker has in one tier."""

    slot: int
    blocks: set[bytes] = field(default_factory=set)

    @property
    def bit(self) -> int:
        return 1 << self.slot


@dataclass(slots=True)
class Snapshot:
    """A snapshot of which parts are still missing."""

    sequence: int = 0
    """The event number it is true for, once its first part came."""
    next_chunk: int = 0
    blocks: dict[str, set[bytes]] = field(default_factory=dict)
    since: list[BlockEvent] = field(default_factory=list)
    """Events applied while it was under way: those after `sequence` are applied again."""

    @property
    def count(self) -> int:
        return sum(len(blocks) for blocks in self.blocks.values())


@dataclass(slots=True)
class Stream:
    """Numbers and sums count every block of the worker, also those that lookups do not know."""

    epoch: Epoch
    most_blocks: int
    """Pages that the worker says it has: it cannot hold more blocks than that."""
    holdings: dict[str, Holding] = field(default_factory=dict)
    sequence: int = 0
    count: int = 0
    digest: int = 0
    unlisted: int = 0
    """Blocks that count here but are not in the table: forgotten there, or beyond the cap."""
    guessed: bool = False
    """A block that nobody can name any more was taken to be one of the unlisted."""
    held: dict[int, BlockEvent] = field(default_factory=dict)
    """Events that arrived ahead of a gap, by number."""
    snapshot: Snapshot | None = None
    announced: int = 0
    """Highest event number that a heartbeat named."""
    permits: int = _PERMITS
    """Snapshots that may be asked for now; each heartbeat gives one back."""
    disagreed: int = 0
    """Snapshots in a row after which the digest still differed."""
    patience: int = 0
    """Heartbeats to let pass before the next one for that reason."""

    @property
    def listed(self) -> int:
        """Blocks that lookups can find."""
        return self.count - self.unlisted

    def beat(self) -> None:
        """A heartbeat came: time has passed."""
        self.permits = min(_PERMITS, self.permits + 1)
        self.patience = max(0, self.patience - 1)

    def agreed(self) -> None:
        """Number and digest are those of the worker."""
        self.disagreed = self.patience = 0

    def may_doubt(self) -> bool:
        """Whether a differing digest is worth a snapshot: ever more rarely when they do not help,
        so that a worker that counts wrong costs little."""
        if self.patience > 0:
            return False
        self.disagreed += 1
        self.patience = min(_MOST_PATIENCE, 2**self.disagreed)
        return True

    def begin_snapshot(self) -> bool:
        """False when one is under way or there were too many lately."""
        if self.snapshot is not None or self.permits == 0:
            return False
        self.permits -= 1
        self.snapshot = Snapshot()
        return True


def key(block: BlockHash) -> bytes | None:
    """A block's name as it is stored here; None for what is no name."""
    try:
        found = bytes.fromhex(block)
    except ValueError:
        return None
    return found if len(found) == NAME_BYTES and len(block) == 2 * NAME_BYTES else None


def number(block: bytes) -> int:
    """Its share of the digest."""
    return int.from_bytes(block, "big")
