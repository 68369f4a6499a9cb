"""What can happen to the scheduler's core, and what it may ask of its shell.

Wire messages are events as they are; the rest is named here.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.core.balance.balance import OrderSwitch, Planned
from shared.ids import Epoch, WorkerId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.requests import Placement, PlacementEnded, PlaceRequest, Refused
from shared.wire.workers import Heartbeat, WorkerLost


@dataclass(frozen=True, slots=True)
class LeadTaken:
    """We answer from now on. `deposed` and its epoch: the leader before us, if there was one."""

    epoch: Epoch
    deposed: WorkerId | None = None
    deposed_epoch: Epoch = Epoch(0)  # noqa: RUF009 - an int


@dataclass(frozen=True, slots=True)
class LeadLost:
    """We only follow from now on: nothing is placed and nobody declared dead."""


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The worker did not answer a snapshot request; the next heartbeat may start another."""

    worker: WorkerId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SwitchAnswered:
    """A worker answered the order to change its role. `refusal`: why not; empty: it will."""

    worker: WorkerId
    epoch: Epoch
    refusal: str


@dataclass(frozen=True, slots=True)
class BusLost:
    """No connection: silence proves nothing from now on."""


@dataclass(frozen=True, slots=True)
class BusRestored:
    """Connected again: every worker gets a fresh chance to be heard."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The message server says that a client of this name and role left it."""

    worker: WorkerId
    role: str


@dataclass(frozen=True, slots=True)
class Presence:
    """The reply to `AskPresence`: it answered, nobody listens there, or (None) nobody knows."""

    worker: WorkerId
    role: str
    epoch: Epoch
    present: bool | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = (
    PlaceRequest
    | PlacementEnded
    | Heartbeat
    | BlocksStored
    | BlocksRemoved
    | BlocksCleared
    | BlockSnapshot
    | LeadTaken
    | LeadLost
    | SnapshotFailed
    | SwitchAnswered
    | Disconnected
    | Presence
    | BusLost
    | BusRestored
    | Tick
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to the PlaceRequest that was just handled."""

    reply: Placement | Refused


@dataclass(frozen=True, slots=True)
class Declare:
    """Broadcast that an incarnation is dead."""

    lost: WorkerLost


@dataclass(frozen=True, slots=True)
class AskSnapshot:
    """Request one part of a worker's blocks; `sequence` names the snapshot of a later part."""

    worker: WorkerId
    role: str
    epoch: Epoch
    chunk: int
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class AskPresence:
    """Ask after a pause whether the worker still listens."""

    worker: WorkerId
    role: str
    epoch: Epoch
    after_s: float = 0.0


Action = Answer | Declare | AskSnapshot | AskPresence | OrderSwitch | Planned
