"""Who is there and what they hold, as heard: heartbeats, block events, snapshots, silence.

The leader and its standby hear the same; only the leader declares an incarnation lost. Places
nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from services.scheduler.core.cluster import Cluster, Worker
from services.scheduler.core.doubts import ASK_AGAIN_S, Doubts, Verdict
from services.scheduler.core.events import (
    Action,
    AskPresence,
    AskSnapshot,
    Declare,
    Disconnected,
    LeadTaken,
    Presence,
)
from services.scheduler.core.plausible import plausible
from services.scheduler.core.prefixes import PrefixIndex
from services.scheduler.core.world import World
from shared.ids import Epoch, WorkerId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.workers import Heartbeat, WorkerLost

_LISTENING: Final = frozenset({"prefill", "decode", "kvpool"})
"""Roles that answer for their blocks, so that their absence can be told."""
_FOLLOWED_S: Final = 30.0
"""A follower remembers the silent for so long: as the next leader it declares them lost."""


class Roster:
    """Feeds `cluster` and `index`; `leading` says whether losses may be declared."""

    def __init__(
        self,
        leader_epoch: Epoch,
        lost_after_s: float,
        reconnect_s: float,
        counts: Counter[str],
        index: PrefixIndex,
    ) -> None:
        self.cluster = Cluster()
        self.index = index
        self.world = World(self.cluster, self.index)
        self.leading = leader_epoch > 0
        self.leader_epoch = leader_epoch
        self._lost_after_s = lost_after_s
        self._doubts = Doubts(reconnect_s)
        self._counts = counts
        self._bus_up = True
        self._ticked_s: float | None = None

    # -- ourselves -------------------------------------------------------------------------

    def take_lead(self, event: LeadTaken) -> list[Action]:
        """Everybody hears who led before: what was asked there is to be asked here."""
        self.leader_epoch = event.epoch
        self.leading = True
        if event.deposed is None:
            return []
        deposed = WorkerLost(
            event.deposed, "scheduler", event.deposed_epoch, event.epoch, "replaced"
        )
        return [Declare(deposed)]

    def lead_lost(self) -> None:
        self.leading = False
        self._doubts.clear()

    def bus_lost(self) -> None:
        self._bus_up = False
        self._doubts.clear()

    def bus_restored(self, now: float) -> None:
        self._bus_up = True
        self.cluster.refresh(now)

    def tick(self, now: float) -> list[Action]:
        """Expire what is old; declare the silent lost. After a pause of our own their silence
        proves nothing: we did not listen."""
        paused = self._ticked_s is not None and now - self._ticked_s > self._lost_after_s / 2
        self._ticked_s = now
        if paused:
            self.cluster.refresh(now)
        self.cluster.expire(now)
        self.index.expire(now)
        self.world.flights.expire(now)
        if not self._bus_up:
            return []
        patience_s = self._lost_after_s + (0.0 if self.leading else _FOLLOWED_S)
        silent = self.cluster.silent(now, patience_s)
        return [action for worker in silent for action in self._gone(worker, "silent")]

    # -- the others ------------------------------------------------------------------------

    def heard(self, beat: Heartbeat, now: float) -> list[Action]:
        """An epoch counts from its first heartbeat. That it was given out proves nothing: the
        question may have been a late copy, of a process that is dead by now."""
        sound = plausible(beat)
        if sound is None:
            self._counts["beats_implausible"] += 1
            return []
        if sound is not beat:
            self._counts["beats_cut"] += 1
            beat = sound
        replaced = self.cluster.learn_epoch(beat.worker, beat.epoch)
        actions = self._replaced(replaced)
        if not self.cluster.hear(beat, now):
            self._counts["stale_heartbeats"] += 1
            return actions
        if beat.state == "ended":
            ended = self.cluster.get(beat.worker)
            return actions + (self._gone(ended, "ended") if ended else [])
        if beat.role == "gateway":
            return actions
        self.world.learned.heard(beat, now)
        self.world.reads(beat, now)
        self.index.follow(beat.worker, beat.epoch, _most_blocks(beat.load.pages_total))
        if self.index.reconcile(beat.worker, beat.epoch, beat.blocks):
            actions += self._ask_snapshot(beat.worker)
        return actions

    def believes(self, beat: Heartbeat) -> bool:
        """Whether this heartbeat, just heard, was taken in: it made sense and was no late copy."""
        worker = self.cluster.get(beat.worker)
        if worker is None:
            return False
        known = worker.report
        return (known.epoch, known.sequence) == (beat.epoch, beat.sequence)

    def disconnected(self, event: Disconnected) -> list[Action]:
        """Nothing is placed there until it beats again. Only a leader looks further."""
        worker = self.cluster.get(event.worker)
        if worker is None or worker.report.role != event.role or event.role not in _LISTENING:
            return []
        self._counts["disconnections"] += 1
        self.cluster.suspect(worker.ref)
        if not self.leading or not self._bus_up:
            return []
        return [*self._doubts.begin(event.worker, event.role, worker.report.epoch)]

    def answered(self, event: Presence) -> list[Action]:
        """Of a worker in doubt. One that nobody reaches for so long will not come back: its
        requests go on elsewhere, and if it lives after all it is told so."""
        worker = self.cluster.get(event.worker)
        if worker is None or worker.report.epoch != event.epoch:
            self._doubts.forget(event.worker)
            return []
        match self._doubts.heard(event):
            case Verdict.OPEN:
                return [AskPresence(event.worker, event.role, event.epoch, ASK_AGAIN_S)]
            case Verdict.DEAD:
                return self._gone(worker, "disconnected")
        return []

    def changed(self, event: BlocksStored | BlocksRemoved | BlocksCleared) -> list[Action]:
        return self._ask_snapshot(event.worker) if self.index.apply(event) else []

    def part_came(self, part: BlockSnapshot) -> list[Action]:
        following = self.index.take_part(part)
        return [] if following is None else self._ask_snapshot(part.worker, *following)

    # -- inside ----------------------------------------------------------------------------

    def _replaced(self, worker: Worker | None) -> list[Action]:
        """Of an older incarnation that was still listed."""
        if worker is None:
            return []
        self._forget(worker.report.worker)
        return self._lost(worker, "replaced")

    def _gone(self, worker: Worker, cause: str) -> list[Action]:
        self.cluster.remove(worker.report.worker)
        self._forget(worker.report.worker)
        return self._lost(worker, cause)

    def _forget(self, worker: WorkerId) -> None:
        """Its blocks, its requests and what was learnt about it alone."""
        self._doubts.forget(worker)
        self.index.forget(worker)
        self.world.flights.lost(worker)
        self.world.trust.forget(worker)
        self.world.learned.links.forget(worker)
        self.world.cards.forget(worker)

    def _lost(self, worker: Worker, cause: str) -> list[Action]:
        if not self.leading:
            return []
        self._counts[f"lost_{cause}"] += 1
        beat = worker.report
        return [Declare(WorkerLost(beat.worker, beat.role, beat.epoch, self.leader_epoch, cause))]

    def _ask_snapshot(self, name: WorkerId, chunk: int = 0, sequence: int = 0) -> list[Action]:
        worker = self.cluster.get(name)
        if worker is None:
            return []
        beat = worker.report
        return [AskSnapshot(beat.worker, beat.role, beat.epoch, chunk, sequence)]


def _most_blocks(pages: int) -> int:
    """That a worker may be believed to hold. Twice its pages: an event may tell of new blocks
    before the next one tells of those that made room for them."""
    return 2 * pages + 1024
