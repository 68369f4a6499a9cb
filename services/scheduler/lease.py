"""Keeps this process a candidate for the lead: the exchanges that `Leadership` asks for.

Tells the app when to answer and when to stop; decides nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from services.scheduler.core.leadership import (
    Leadership,
    LeaseAction,
    LeaseEvent,
    LeaseSettings,
    Observed,
    ReadKey,
    Resigned,
    StepBack,
    StoreSilent,
    TakeLead,
    Watched,
    WriteKey,
    Wrote,
)
from services.scheduler.store import EpochStore
from shared.clock import Clock
from shared.errors import BusError
from shared.ids import WorkerId

_WATCH_S: Final = 0.1
_RESIGN_S: Final = 1.0

Turned = Callable[[TakeLead | StepBack], None]


class LeaseKeeper:
    """`turned` is called, on the loop, at each change of who we are."""

    def __init__(
        self, store: EpochStore, worker: WorkerId, lease_s: float, clock: Clock, turned: Turned
    ) -> None:
        settings = LeaseSettings(
            worker=worker,
            incarnation=secrets.token_hex(8),
            lease_s=lease_s,
            renew_s=lease_s / 4,
            watch_s=lease_s / 8,
        )
        self._leadership = Leadership(settings)
        self._store = store
        self._clock = clock
        self._turned = turned
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until `resign`. Raises nothing when the store is away: then nobody leads."""
        while not self._stop.is_set():
            await self._feed(Watched())
            try:
                async with asyncio.timeout(_WATCH_S):
                    await self._stop.wait()
            except TimeoutError:
                continue
        try:
            async with asyncio.timeout(_RESIGN_S):
                await self._feed(Resigned())
        except TimeoutError:
            return

    def leads(self) -> bool:
        """Whether we may act as the leader right now. Called before every deed: a process that
        was paused hears of it here first."""
        now = self._clock.now()
        if self._leadership.leading and not self._leadership.leads(now):
            for action in self._leadership.lapse(now):
                self._turned(action)
        return self._leadership.leads(now)

    def knows_a_leader(self) -> bool:
        """We lead, or somebody else does."""
        return self.leads() or self._leadership.follows

    def resign(self) -> None:
        """Give up the lease, if we hold it, and end `run`."""
        self._stop.set()

    async def _feed(self, event: LeaseEvent | None) -> None:
        """One event, and all exchanges that follow from it."""
        while event is not None:
            actions = self._leadership.handle(event, self._clock.now())
            event = None
            for action in actions:
                event = await self._carry_out(action)

    async def _carry_out(self, action: LeaseAction) -> LeaseEvent | None:
        match action:
            case TakeLead() | StepBack():
                self._turned(action)
                return None
            case ReadKey() | WriteKey():
                return await self._exchange(action)

    async def _exchange(self, action: ReadKey | WriteKey) -> LeaseEvent:
        asked_s = self._clock.now()
        try:
            if isinstance(action, ReadKey):
                return Observed(*await self._store.read_lead())
            revision = await self._store.write_lead(action.claim, action.revision)
        except BusError:
            return StoreSilent()
        return Wrote(action.claim, revision, asked_s)
