"""What a worker adds to the spans of its jobs: who it is, and how many spans were too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from shared.telemetry.span import Value

MOST_OF_A_KIND: Final = 512
MESSAGING: Final = "messaging.system"


def hop(subject: str, operation: str) -> dict[str, Value]:
    """Attributes of a message on the bus: `operation` is send or process."""
    return {
        MESSAGING: "nats",
        "messaging.destination.name": subject,
        "messaging.operation.type": operation,
    }


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs."""

    worker: str
    epoch: Callable[[], int]
    subject: str
    """On which its jobs arrive."""
    page_bytes: int = 0

    def identity(self, attempt: int) -> dict[str, Value]:
        return {
            "baton.worker": self.worker,
            "baton.epoch": self.epoch(),
            "baton.attempt": attempt,
        }


class Fold:
    """Spans of one kind beyond 512 for a job are not made, only counted."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, Counter[str]] = {}

    def admits(self, key: Hashable, name: str) -> bool:
        counts = self._counts.setdefault(key, Counter())
        counts[name] += 1
        return counts[name] <= MOST_OF_A_KIND

    def closed(self, key: Hashable) -> Mapping[str, Value]:
        """The job is over: how many spans of which kind are missing."""
        counts = self._counts.pop(key, Counter())
        return {
            f"baton.folded.{name}": count - MOST_OF_A_KIND
            for name, count in counts.items()
            if count > MOST_OF_A_KIND
        }
