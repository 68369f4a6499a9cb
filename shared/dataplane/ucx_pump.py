"""Who moves the bytes: all busy channels of a process, in turns on the event loop's thread.

While bytes flow it goes on without sleeping, because to wake a sleeping process costs more than
to copy a page; after a short quiet it lets UCX's wake-up descriptors do the waiting. Knows
nothing of what is moved.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

SLICE_S: Final = 0.001
"""Longest turn before other callbacks of the loop run."""
_PEEK_S: Final = 0.00003
"""A turn in which nothing moves ends after this: what a callback would do next may be awaited."""
_LINGER_S: Final = 0.0002
"""Quiet time after which channels go to sleep: about what a wake-up costs both processes."""


class Movable(Protocol):
    def advance(self) -> bool:
        """Move what can be moved now. True: something did."""
        ...

    def deliver(self) -> bool:
        """Report what has ended. True: something had."""
        ...

    @property
    def expects(self) -> bool:
        """Whether the peer has something to say next. Otherwise we do, and it is no use to wait."""
        ...

    def sleep(self) -> bool:
        """Ask to be woken. False: there is something to do first."""
        ...


class Pump:
    """One per plane. A channel that wakes is moved until it sleeps or is dropped."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._awake: dict[Movable, None] = {}
        self._scheduled = False
        self._moved_s = 0.0

    def wake(self, channel: Movable) -> None:
        """There may be something to move. The descriptor of an awake channel stays readable, so
        this is called often."""
        if channel not in self._awake:
            self._awake[channel] = None
            self._moved_s = self._loop.time()
            self._schedule()

    def drop(self, channel: Movable) -> None:
        self._awake.pop(channel, None)

    def _schedule(self) -> None:
        if not self._scheduled and self._awake:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = started_s = self._loop.time()
        ended = False
        while not ended and now - started_s < SLICE_S:
            moved = False
            for channel in tuple(self._awake):
                moved |= channel.advance()
                ended |= channel.deliver()
            now = self._loop.time()
            if moved or ended:
                self._moved_s = now
            elif now - max(self._moved_s, started_s) > _PEEK_S:
                break
        self._rest(quiet_s=now - self._moved_s)
        self._schedule()

    def _rest(self, quiet_s: float) -> None:
        """Let channels sleep that have waited long enough, or that wait for nothing."""
        for channel in tuple(self._awake):
            over = quiet_s > _LINGER_S or (quiet_s > 0 and not channel.expects)
            if over and channel.sleep():
                self.drop(channel)
