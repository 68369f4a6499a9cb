"""Whether this process still makes progress: watched ages with bounds, and the end of one that
hangs.

A call that hangs in another thread cannot be ended; a process can. Knows no service.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shared.errors import StartupError

EXIT_STUCK: Final = 3
_LOOK_S: Final = 0.25
_PATIENCE: Final = 0.5
"""Share of the bound for which a stuck process is shown to probes before it ends itself."""


@dataclass(frozen=True, slots=True)
class _Watch:
    name: str
    age_s: Callable[[], float]
    limit_s: float


class Liveness:
    """What must not grow old. Ages are read from any thread."""

    def __init__(self) -> None:
        self._watches: list[_Watch] = []

    def watch(self, name: str, age_s: Callable[[], float], limit_s: float) -> None:
        """From now on `age_s()` above `limit_s` means stuck. Raises StartupError for a bound that
        is none."""
        if not 0.0 < limit_s < float("inf"):
            raise StartupError(f"the bound of {name} must be above 0 s and finite")
        self._watches.append(_Watch(name, age_s, limit_s))

    @property
    def obstacle(self) -> str:
        """What is stuck, for how long; '' while all is well."""
        found = self._stuck()
        if found is None:
            return ""
        watch, age_s = found
        return f"{watch.name} without progress for {age_s:.1f} s (bound {watch.limit_s:g} s)"

    @property
    def patience_s(self) -> float:
        """How long the stuck part may stay so until the process should end; 0: nothing is stuck."""
        found = self._stuck()
        return 0.0 if found is None else _PATIENCE * found[0].limit_s

    def _stuck(self) -> tuple[_Watch, float] | None:
        for watch in self._watches:
            age_s = watch.age_s()
            if age_s > watch.limit_s:
                return watch, age_s
        return None


class Watchdog:
    """A thread of its own, so that neither a blocked event loop nor a hung call can hold it up.
    It counts its own looks, not seconds: a process that was stopped as a whole and goes on is
    given its time."""

    def __init__(self, liveness: Liveness, say: Callable[[str], None]) -> None:
        self._liveness = liveness
        self._say = say
        self._stop = threading.Event()
        self._stuck_s = 0.0
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()

    def look(self) -> bool:
        """One look; whether the process has been stuck for too long."""
        patience_s = self._liveness.patience_s
        self._stuck_s = self._stuck_s + _LOOK_S if patience_s else 0.0
        return bool(patience_s) and self._stuck_s >= patience_s

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            if self.look():
                self._end()

    def _end(self) -> None:
        """Without clean-up: whatever waits for the stuck part would wait for ever."""
        self._say(self._liveness.obstacle)
        os._exit(EXIT_STUCK)
