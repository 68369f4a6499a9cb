"""Whether this gateway could place a request now, from what the scheduler tells everybody.

Costs one small message a beat for all gateways together; asks nobody.
"""

from __future__ import annotations

from typing import Final

from shared.bus.bus import Bus, Delivery
from shared.clock import Clock
from shared.errors import Code
from shared.ids import Epoch
from shared.wire import subjects
from shared.wire.workers import ClusterStatus

STALE_BEATS: Final = 4
"""Without news for so many beats there is no scheduler."""


class Standing:
    """Remembers the last ClusterStatus of the newest leader."""

    def __init__(self, bus: Bus, clock: Clock, model_digest: str, heartbeat_s: float) -> None:
        self._bus = bus
        self._clock = clock
        self._model_digest = model_digest
        self._fresh_s = STALE_BEATS * heartbeat_s
        self._leader_epoch = Epoch(0)
        self._heard_s = float("-inf")
        self._servable = False

    async def start(self) -> None:
        await self._bus.subscribe(subjects.SERVING, self._from_scheduler, concurrency=1)

    async def _from_scheduler(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, ClusterStatus):
            self.hear(delivery.message)

    def hear(self, status: ClusterStatus) -> None:
        """News; those of an older leader do not count while the newer one is fresh in memory."""
        if status.leader_epoch < self._leader_epoch and self._fresh:
            return
        self._leader_epoch = status.leader_epoch
        self._heard_s = self._clock.now()
        self._servable = self._model_digest in status.models

    @property
    def _fresh(self) -> bool:
        return self._clock.now() - self._heard_s <= self._fresh_s

    @property
    def obstacle(self) -> Code | None:
        """Why nothing could be placed now; None: it could."""
        if not self._bus.connected or not self._fresh:
            return Code.CONTROL_PLANE_DOWN
        return None if self._servable else Code.NO_WORKER
