"""Who moves the bytes: all busy channels of a process, in turns on the event loop's thread.

While bytes flow it goes on without sleeping, because to wake a sleeping process costs more than
to copy a page; after a short quiet it lets UCX's wake-up descriptors do the waiting. Knows
nothing of what is moved.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from shared.dataplane.ucx_exchange import LANDED

SLICE_S: Final = 0.001
"""Longest turn before other callbacks of the loop run."""
_PEEK_S: Final = 0.00003
_PEEK_NS: Final = round(_PEEK_S * 1e9)
"""A turn in which nothing moves ends after this: what a callback would do next may be awaited."""
_LINGER_S: Final = 0.0002
"""Quiet time after which channels go to sleep: about what a wake-up costs both processes."""


class Movable(Protocol):
    def turn(self, patience_ns: int) -> int:
        """Move what can be moved now, or wait for so long; report what has ended. 0: nothing did
        move or end. LANDED: as `Pump.pause`."""
        ...

    @property
    def expects(self) -> bool:
        """Whether the peer has something to say next. Otherwise we do, and it is no use to wait."""
        ...

    def sleep(self) -> bool:
        """Ask to be woken. False: there is something to do first."""
        ...

    def awoken(self) -> None:
        """It is moved from now on and need not ask."""
        ...


class Pump:
    """One per plane. A channel that wakes is moved until it sleeps or is dropped."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.awake: dict[Movable, None] = {}
        """Those that are moved."""
        self._scheduled = False
        self._moved_s = 0.0
        self._paused = False

    def wake(self, channel: Movable) -> None:
        """There may be something to move. Called often."""
        if channel not in self.awake:
            self.awake[channel] = None
            channel.awoken()
            self._moved_s = self._loop.time()
            self._schedule()

    def pause(self) -> None:
        """Someone on the loop got what it waited for: let it run before the next turn."""
        self._paused = True

    def drop(self, channel: Movable) -> None:
        self.awake.pop(channel, None)

    def _schedule(self) -> None:
        if not self._scheduled and self.awake:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = started_s = self._loop.time()
        self._paused = False
        while not self._paused and now - started_s < SLICE_S:
            awake = tuple(self.awake)
            if len(awake) == 1:
                moved = awake[0].turn(_PEEK_NS)
            else:
                moved = max([channel.turn(0) for channel in awake], default=0)
            if moved == LANDED:
                self._moved_s = now
                break
            now = self._loop.time()
            if moved:
                self._moved_s = now
            elif now - max(self._moved_s, started_s) > _PEEK_S:
                break
        if now > self._moved_s:
            self._rest(quiet_s=now - self._moved_s)
        self._schedule()

    def _rest(self, quiet_s: float) -> None:
        """Let channels sleep that have waited long enough, or that wait for nothing."""
        for channel in tuple(self.awake):
            over = quiet_s > _LINGER_S or (quiet_s > 0 and not channel.expects)
            if over and channel.sleep():
                self.drop(channel)
