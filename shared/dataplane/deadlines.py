"""Deadlines of everything that waits in one process, under one timer.

A timer per read would cost as much as asking for a page.
"""

from __future__ import annotations

import asyncio
import math


class Deadlines:
    """Lives on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.limits: dict[asyncio.Future[None], float] = {}
        """Until when each may wait; native/direct.h adds its own, and calls `set`."""
        self._timer: asyncio.TimerHandle | None = None
        self.due_s = math.inf
        """When the timer goes off; earlier than any limit, or at it."""

    def now(self) -> float:
        """In the time that limits are given in."""
        return self._loop.time()

    def waiter(self, limit_s: float) -> asyncio.Future[None]:
        """What to await until someone gives it a result, or the limit does; then `leave`."""
        waiter = self._loop.create_future()
        self.limits[waiter] = limit_s
        if limit_s < self.due_s:
            self.set(limit_s)
        return waiter

    def leave(self, waiter: asyncio.Future[None]) -> None:
        """The timer stays: it costs one look at what then waits."""
        self.limits.pop(waiter, None)

    def close(self) -> None:
        """Nothing waits any more."""
        self.set(math.inf)

    def set(self, due_s: float) -> None:
        """Look then, and no longer when it was to be."""
        if self._timer is not None:
            self._timer.cancel()
        self.due_s = due_s
        self._timer = None if due_s == math.inf else self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for waiter in [w for w, limit_s in self.limits.items() if limit_s <= now_s]:
            del self.limits[waiter]
            if not waiter.done():
                waiter.set_result(None)
        self.set(min(self.limits.values(), default=math.inf))
