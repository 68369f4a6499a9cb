"""Leases that prefill workers hold for us: renewed while we wait, released when we are done.

A release is repeated until acknowledged, at most for the life of the lease: then it has
lapsed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.decode.core.actions import Release, RenewLeases
from services.decode.core.desk import Desk
from services.decode.core.sequences import Sequence
from shared.errors import Code
from shared.ids import Epoch, WorkerId
from shared.wire.requests import LeaseKey, WorkerRef

_FIRST_REPEAT_S: Final = 0.5
_LARGEST_REPEAT_S: Final = 8.0
_RENEWALS_PER_LEASE: Final = 6


@dataclass(slots=True)
class _Releasing:
    peer: WorkerRef
    reason: str
    until_s: float
    due_s: float
    pause_s: float


class BorrowedLeases:
    """Renewals and releases towards all prefill workers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._releasing: dict[LeaseKey, _Releasing] = {}
        self._renew_due_s = 0.0

    @property
    def releasing(self) -> int:
        """Releases that were not acknowledged yet."""
        return len(self._releasing)

    def give_back(self, sequence: Sequence, reason: str, now: float) -> None:
        """Release what prefill holds for this sequence, if it can hold anything."""
        handoff = sequence.handoff
        if handoff is None or handoff.first_seen_s is None:
            return
        if handoff.lost is not Code.WORKER_LOST:
            self._release(sequence.key, handoff.owner, reason, now)

    def acknowledged(self, key: LeaseKey) -> None:
        if self._releasing.pop(key, None) is None:
            self._desk.counts["ignored"] += 1

    def peer_lost(self, worker: WorkerId, epoch: Epoch) -> None:
        """A dead incarnation holds no leases."""
        self._releasing = {
            key: entry
            for key, entry in self._releasing.items()
            if entry.peer.worker != worker or entry.peer.epoch > epoch
        }

    def tick(self, now: float) -> None:
        for key, entry in list(self._releasing.items()):
            if now >= entry.until_s:
                del self._releasing[key]
                self._desk.counts["releases_given_up"] += 1
            elif now >= entry.due_s:
                entry.pause_s = min(2 * entry.pause_s, _LARGEST_REPEAT_S)
                entry.due_s = now + entry.pause_s
                self._desk.out.append(Release(entry.peer, key, entry.reason))
        if now >= self._renew_due_s:
            self._renew_due_s = now + self._desk.rules.lease_s / _RENEWALS_PER_LEASE
            self._renew(now)

    def _renew(self, now: float) -> None:
        """One message per peer, from the moment a job was accepted until it is committed."""
        by_peer: dict[WorkerRef, list[LeaseKey]] = {}
        for sequence in self._desk.sequences.values():
            handoff = sequence.handoff
            if handoff is not None and not handoff.committed and handoff.lost is None:
                by_peer.setdefault(handoff.owner, []).append(sequence.key)
        for peer, keys in by_peer.items():
            self._desk.out.append(RenewLeases(peer, tuple(keys), now))

    def _release(self, key: LeaseKey, peer: WorkerRef, reason: str, now: float) -> None:
        if key in self._releasing:
            return
        self._releasing[key] = _Releasing(
            peer, reason, now + self._desk.rules.lease_s, now + _FIRST_REPEAT_S, _FIRST_REPEAT_S
        )
        self._desk.out.append(Release(peer, key, reason))
