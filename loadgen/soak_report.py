"""The judgement of a soak: what leaked, and whether memory is flat."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MIB: Final = 1024 * 1024
_SLACK_BYTES: Final = 6 * _MIB
_SLACK_SHARE: Final = 0.03


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


@dataclass(slots=True)
class Memory:
    """Samples of one process. Judged over the later half, when caches and pools are filled."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    def add(self, instant_s: float, resident: int) -> None:
        self.samples.append((instant_s, resident))

    @property
    def slope_bytes_per_s(self) -> float:
        """Least squares over the later half."""
        later = self._later()
        if len(later) < 2:
            return 0.0
        mean_s = sum(at for at, _ in later) / len(later)
        mean = sum(size for _, size in later) / len(later)
        spread = sum((at - mean_s) ** 2 for at, _ in later)
        return sum((at - mean_s) * (size - mean) for at, size in later) / spread if spread else 0.0

    @property
    def bound_bytes_per_s(self) -> float:
        """The steepest slope that still counts as flat: a few MiB or per cent over the window."""
        later = self._later()
        if len(later) < 2 or later[-1][0] == later[0][0]:
            return float("inf")
        slack = max(_SLACK_BYTES, _SLACK_SHARE * later[0][1])
        return slack / (later[-1][0] - later[0][0])

    @property
    def flat(self) -> bool:
        return self.slope_bytes_per_s <= self.bound_bytes_per_s

    @property
    def last_bytes(self) -> int:
        return self.samples[-1][1] if self.samples else 0

    def _later(self) -> list[tuple[float, int]]:
        return self.samples[len(self.samples) // 2 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that a soak says."""

    seconds: float
    ends: Mapping[str, int]
    """Requests by the state in which their client left."""
    broken: Mapping[str, int]
    """Answers that were none."""
    cuts: int
    settled_s: float
    held: Mapping[str, Mapping[str, Any]]
    lost_pages: int
    memory: Mapping[str, Memory]
    probe_ok: bool

    @property
    def good(self) -> bool:
        flat = all(memory.flat for memory in self.memory.values())
        return self.probe_ok and flat and not self.held and not self.lost_pages and not self.broken

    def line(self) -> str:
        steepest = max((m.slope_bytes_per_s for m in self.memory.values()), default=0.0)
        return json.dumps(
            {
                "bench": "soak",
                "seconds": round(self.seconds, 1),
                "requests": sum(self.ends.values()),
                "cuts_at_once": self.cuts,
                "broken": sum(self.broken.values()),
                "settled_s": round(self.settled_s, 3),
                "leaks": sum(len(entries) for entries in self.held.values()),
                "lost_pages": self.lost_pages,
                "steepest_rss_kib_per_s": round(steepest / 1024, 1),
                "rss_flat": all(memory.flat for memory in self.memory.values()),
                "probe_ok": self.probe_ok,
                "ok": self.good,
            }
        )

    def table(self) -> str:
        rows = [("left when", ", ".join(f"{state} {count}" for state, count in self.ends.items()))]
        rows.append(("broken", ", ".join(f"{k} {v}" for k, v in self.broken.items()) or "none"))
        rows.append(("cut at once", f"{self.cuts}"))
        rows.append(("settled", f"{self.settled_s:.2f} s after the last cut"))
        rows.append(("held", str(dict(self.held)) if self.held else "nothing"))
        for name, memory in self.memory.items():
            slope, bound = memory.slope_bytes_per_s / 1024, memory.bound_bytes_per_s / 1024
            text = f"{memory.last_bytes / _MIB:.0f} MiB, {slope:+.1f} KiB/s (bound {bound:.1f})"
            rows.append((name, text + ("" if memory.flat else "   GROWS")))
        return "\n".join(f"{name:<14}{text}" for name, text in rows)
