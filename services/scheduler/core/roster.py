"""Who is there and what they hold, as heard: heartbeats, block events, snapshots, silence.

The leader and its standby hear the same; only the leader declares an incarnation lost. Places
nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from services.scheduler.core.cluster import Cluster, Worker
from services.scheduler.core.events import Action, AskSnapshot, Declare, LeadTaken
from services.scheduler.core.prefixes import PrefixIndex
from shared.ids import Epoch, WorkerId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.workers import Heartbeat, WorkerLost

_FOLLOWED_S: Final = 30.0
"""A follower remembers the silent for so long: as the next leader it declares them lost."""


class Roster:
    """Feeds `cluster` and `index`; `leading` says whether losses may be declared."""

    def __init__(self, leader_epoch: Epoch, lost_after_s: float, counts: Counter[str]) -> None:
        self.cluster = Cluster()
        self.index = PrefixIndex()
        self.leading = leader_epoch > 0
        self.leader_epoch = leader_epoch
        self._lost_after_s = lost_after_s
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

    def bus_lost(self) -> None:
        self._bus_up = False

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
        if not self._bus_up:
            return []
        patience_s = self._lost_after_s + (0.0 if self.leading else _FOLLOWED_S)
        silent = self.cluster.silent(now, patience_s)
        return [action for worker in silent for action in self._gone(worker, "silent")]

    # -- the others ------------------------------------------------------------------------

    def heard(self, beat: Heartbeat, now: float) -> list[Action]:
        """An epoch counts from its first heartbeat. That it was given out proves nothing: the
        question may have been a late copy, of a process that is dead by now."""
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
        self.index.follow(beat.worker, beat.epoch)
        if self.index.reconcile(beat.worker, beat.epoch, beat.blocks):
            actions += self._ask_snapshot(beat.worker)
        return actions

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
        self.index.forget(worker.report.worker)
        return self._lost(worker, "replaced")

    def _gone(self, worker: Worker, cause: str) -> list[Action]:
        self.cluster.remove(worker.report.worker)
        self.index.forget(worker.report.worker)
        return self._lost(worker, cause)

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
