"""Tells every gateway what could be placed: each beat, and at once when that changes.

So a gateway knows whether it is of use without asking, and one without news knows that too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from services.scheduler.core.machine import SchedulerMachine
from shared.bus.headers import Headers
from shared.errors import BusError
from shared.ids import Epoch
from shared.runtime.service import Scope
from shared.wire import subjects
from shared.wire.workers import ClusterStatus

_LOOK_S: Final = 0.1


class Announcing:
    """Silent while another scheduler leads."""

    def __init__(self, scope: Scope, core: SchedulerMachine, leads: Callable[[], bool]) -> None:
        self._scope = scope
        self._core = core
        self._leads = leads

    async def run(self) -> None:
        """For ever."""
        clock, beat_s = self._scope.clock, self._scope.settings.heartbeat_s
        told: ClusterStatus | None = None
        due_s = 0.0
        while True:
            status = self._status() if self._leads() else None
            if status is not None and (status != told or clock.now() >= due_s):
                due_s = clock.now() + beat_s
                told = status if await self._tell(status) else None
            await asyncio.sleep(min(_LOOK_S, beat_s))

    def _status(self) -> ClusterStatus:
        return ClusterStatus(Epoch(self._core.roster.leader_epoch), self._core.servable())

    async def _tell(self, status: ClusterStatus) -> bool:
        try:
            await self._scope.bus.publish(subjects.SERVING, status, Headers())
        except BusError:
            return False
        return True
