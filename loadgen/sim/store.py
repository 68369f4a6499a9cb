"""The key-value bucket of epochs, as the message server keeps it: compare-and-set, nothing more.

Every exchange goes over the network; an answer that is lost leaves its writer in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.core.leadership import Claim
from shared.ids import Epoch, WorkerId


@dataclass(slots=True)
class EpochBucket:
    """Claims by key. It outlives every process."""

    claims: dict[str, tuple[Claim, int]] = field(default_factory=dict)
    revision: int = 0
    past: set[str] = field(default_factory=set)
    """Incarnations that were replaced."""

    def read(self, key: str) -> tuple[Claim | None, int]:
        return self.claims.get(key, (None, 0))

    def write(self, key: str, claim: Claim, revision: int) -> int | None:
        """The new revision, or None: somebody else was faster."""
        if self.read(key)[1] != revision:
            return None
        self.revision += 1
        self.claims[key] = (claim, self.revision)
        return self.revision

    def take(self, worker: WorkerId, incarnation: str, above: Epoch) -> Epoch | None:
        """The epoch of this incarnation: a new one, or the same when it asks again; None for one
        that was replaced."""
        key = f"worker.{worker}"
        held, revision = self.read(key)
        if held is not None and held.incarnation == incarnation:
            return held.epoch
        if incarnation in self.past:
            return None
        if held is not None:
            self.past.add(held.incarnation)
        last = 0 if held is None else held.epoch
        claim = Claim(Epoch(max(last, above) + 1), incarnation, worker)
        self.write(key, claim, revision)
        return claim.epoch
