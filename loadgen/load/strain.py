"""What a client process suffers itself: how late its event loop wakes, how much processor it uses,
how much memory it holds. The verdict "client limited" rests on it.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

from loadgen.load.histogram import Histogram

_BEAT_S: Final = 0.02
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Strain:
    """Beats while the load runs."""

    def __init__(self) -> None:
        self.loop_lag = Histogram()
        self._began_s = 0.0
        self._processor_s = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self.memory_mib: list[float] = []

    def begin(self) -> None:
        self._began_s, self._processor_s = time.monotonic(), time.process_time()
        self._next()

    def look(self) -> None:
        """Note the memory held now."""
        self.memory_mib.append(resident_mib())

    def end(self) -> dict[str, object]:
        """The figures, as plain values."""
        if self._handle is not None:
            self._handle.cancel()
        wall_s = max(1e-9, time.monotonic() - self._began_s)
        used = (time.process_time() - self._processor_s) / wall_s
        lag_s = self.loop_lag.quantile(0.99)
        seen = self.memory_mib
        return {
            "processor_share": round(used, 4),
            "loop_lag_p99_ms": None if lag_s is None else round(lag_s * 1000, 3),
            "memory_mib": [seen[0], max(seen), seen[-1]] if seen else [],
        }

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + _BEAT_S
        self._handle = loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self.loop_lag.add(max(0.0, asyncio.get_running_loop().time() - self._due_s))
        self._next()


def resident_mib() -> float:
    """Memory of this process; 0 where the system does not tell."""
    try:
        pages = int(_STATM.read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return round(pages * _PAGE_BYTES / 2**20, 1)
