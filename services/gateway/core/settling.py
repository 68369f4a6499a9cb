"""Endings that peers have not confirmed yet: cancels to repeat, reports to the scheduler.

Bounded in number and in tries; behind it stand the workers' own deadlines and leases. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.gateway.core.actions import Action, Cancel, ReportEnd
from services.gateway.core.events import Silence
from shared.ids import Attempt, RequestId, WorkerId
from shared.wire.requests import PlacementEnded

MAX_OPEN: Final = 8_192
_FIRST_PAUSE_S: Final = 0.25

_Key = tuple[RequestId, Attempt, WorkerId]


@dataclass(slots=True)
class _Open:
    cancel: Cancel
    tries: int = 0
    due_s: float | None = None
    """Send again at this instant; None: sent, or waiting for the bus."""
    waits_for_bus: bool = False


class Settlement:
    """Cancels without an answer and reports that could not be sent."""

    def __init__(self, tries: int) -> None:
        self._tries = tries
        self._open: dict[_Key, _Open] = {}
        self._unsent: list[PlacementEnded] = []

    @property
    def open_cancels(self) -> int:
        return len(self._open)

    def sent(self, cancel: Cancel) -> None:
        """A cancel leaves, for the first time or again."""
        key = (cancel.message.request, cancel.message.attempt, cancel.worker)
        if key in self._open:
            return
        if len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[key] = _Open(cancel)

    def answered(self, request: RequestId, attempt: Attempt, worker: WorkerId) -> bool:
        """The holder confirmed; False if nobody was waiting for that."""
        return self._open.pop((request, attempt, worker), None) is not None

    def unanswered(self, key: _Key, silence: Silence, peer_may_return: bool, now: float) -> None:
        """No confirmation: repeat with growing pauses, a bounded number of times."""
        entry = self._open.get(key)
        if entry is None:
            return
        if silence is Silence.DISCONNECTED:
            entry.waits_for_bus = True
            return
        entry.tries += 1
        gone = silence is Silence.NO_RESPONDER and not peer_may_return
        if gone or entry.tries >= self._tries:
            del self._open[key]
            return
        entry.due_s = now + _FIRST_PAUSE_S * 2**entry.tries

    def unsent(self, message: PlacementEnded) -> None:
        """The scheduler could not be told; kept until the bus is back."""
        if len(self._unsent) < MAX_OPEN:
            self._unsent.append(message)

    def worker_died(self, worker: WorkerId) -> None:
        """Nothing to cancel there any more."""
        for key in [key for key in self._open if key[2] == worker]:
            del self._open[key]

    def bus_returned(self) -> list[Action]:
        """Everything that waited for the connection goes out now."""
        actions: list[Action] = [ReportEnd(message) for message in self._unsent]
        self._unsent = []
        for entry in self._open.values():
            if entry.waits_for_bus:
                entry.waits_for_bus = False
                actions.append(entry.cancel)
        return actions

    def due(self, now: float) -> list[Action]:
        """Cancels whose pause is over."""
        actions: list[Action] = []
        for entry in self._open.values():
            if entry.due_s is not None and now >= entry.due_s:
                entry.due_s = None
                actions.append(entry.cancel)
        return actions
