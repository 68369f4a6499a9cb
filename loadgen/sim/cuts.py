"""Crashes at a chosen event of a host: before it, or after it with some of its actions done."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from loadgen.sim.case import Fault


class Cuts:
    """Counts each host's events over all its incarnations."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.seen: Counter[str] = Counter()
        self._planned: dict[str, dict[int, Fault]] = defaultdict(dict)
        for fault in faults:
            if fault.event:
                self._planned[fault.host][fault.event] = fault

    def next(self, host: str) -> Fault | None:
        """The crash that is planned for the event that comes now."""
        self.seen[host] += 1
        planned = self._planned.get(host)
        return None if planned is None else planned.pop(self.seen[host], None)

    def clear(self) -> None:
        """The faults are over."""
        self._planned.clear()
