"""When the process looks for reference cycles: between decisions, not in them.

The interpreter would do it in the middle of whichever decision allocates the next object, and a
full search walks all that is remembered: milliseconds where a decision takes half of one. Few
cycles arise here, so a tick is soon enough. Knows nothing of the scheduler.
"""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 1
_ALL: Final = 2
_QUIET_TICKS: Final = 20
_AT_MOST_TICKS: Final = 480
"""Two minutes of ticks: then a full search even if nobody is ever quiet. What dies as a cycle
stays for so long."""


class Collecting:
    """Takes over from the interpreter until `stop`."""

    def __init__(self) -> None:
        self._was_on = gc.isenabled()
        self._quiet = 0
        self._since_full = 0
        gc.disable()

    def tick(self, asked: bool) -> int:
        """Once a tick; `asked`: whether any decision was asked for since the last one. Recent
        objects are searched each time, all of them after a quiet while. The generation that was
        searched."""
        self._quiet = 0 if asked else self._quiet + 1
        self._since_full += 1
        if self._quiet < _QUIET_TICKS and self._since_full < _AT_MOST_TICKS:
            gc.collect(_YOUNG)
            return _YOUNG
        self._quiet = self._since_full = 0
        gc.collect(_ALL)
        return _ALL

    def stop(self) -> None:
        """As it was before."""
        if self._was_on:
            gc.enable()
