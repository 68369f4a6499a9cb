"""Whom the message server lost sight of: asked again and again, and then dead or back.

A killed process loses its connection at once, long before its silence tells. A living one comes
back within a moment, so one loss proves nothing. Knows no connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from services.scheduler.core.events import AskPresence, Presence
from shared.ids import Epoch, WorkerId

ASK_AGAIN_S: Final = 0.1


class Verdict(Enum):
    """What one more answer means."""

    OPEN = "open"
    DEAD = "dead"


@dataclass(slots=True)
class _Doubt:
    epoch: Epoch
    absences: int = 0


class Doubts:
    """`patience_s` is how long a living worker may take to connect again. It is counted in
    questions, not read off a clock: after a pause of our own nobody is dead for it."""

    def __init__(self, patience_s: float) -> None:
        self._most = 1 + max(1, round(patience_s / ASK_AGAIN_S))
        self._open: dict[WorkerId, _Doubt] = {}

    def begin(self, worker: WorkerId, role: str, epoch: Epoch) -> list[AskPresence]:
        """Its connection ended. One line of questions at a time."""
        known = self._open.get(worker)
        if known is not None and known.epoch == epoch:
            return []
        self._open[worker] = _Doubt(epoch)
        return [AskPresence(worker, role, epoch)]

    def heard(self, event: Presence) -> Verdict | None:
        """DEAD ends the doubt, and so does any answer but a plain absence; None: nobody doubts
        (any more)."""
        doubt = self._open.get(event.worker)
        if doubt is None or doubt.epoch != event.epoch:
            return None
        if event.present is not False:
            del self._open[event.worker]
            return None
        doubt.absences += 1
        if doubt.absences < self._most:
            return Verdict.OPEN
        del self._open[event.worker]
        return Verdict.DEAD

    def forget(self, worker: WorkerId) -> None:
        self._open.pop(worker, None)

    def clear(self) -> None:
        """We hear nothing ourselves, or decide nothing."""
        self._open.clear()
