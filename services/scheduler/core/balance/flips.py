"""One change of a role at a time, from the order to the worker's return, as heartbeats tell it.

ordered -> draining (its beats say so) -> starting (gone) -> back at a higher epoch: done, or
in its old role: failed. Nothing is kept elsewhere: a new leader finds a worker that drains for
another role in its heartbeats, and goes on from there.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from services.scheduler.core.balance.settings import BalanceSettings
from services.scheduler.core.cluster import Cluster, Worker
from shared.ids import Epoch, WorkerId

_ANSWER_S: Final = 10.0
"""An order whose worker does not drain by then is withdrawn."""
_REPEAT_S: Final = 1.0
_REMEMBERED: Final = 32
_LONGEST_PAUSE: Final = 8
"""Cool-downs after failures in a row."""
_FIRST_GUESS_S: Final = 20.0
_WEIGHT: Final = 0.3


@dataclass(slots=True)
class Flip:
    """Under way."""

    worker: WorkerId
    epoch: Epoch
    source: str
    to: str
    reason: str
    since_s: float
    stage: str = "ordered"
    repeat_s: float = 0.0
    """When the order is sent again."""


@dataclass(frozen=True, slots=True)
class Flipped:
    """Over."""

    worker: WorkerId
    to: str
    outcome: str
    """'done', or why not."""
    seconds: float
    at_s: float


class Flips:
    """Knows no loads: whether a change is worth it is the planner's business."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self.current: Flip | None = None
        self.past: deque[Flipped] = deque(maxlen=_REMEMBERED)
        self.counts: Counter[tuple[str, str]] = Counter()
        """By (role, 'done' or 'failed')."""
        self.cool_until_s = float("-inf")
        self.takes_s = _FIRST_GUESS_S
        """What a change takes, as measured."""
        self._failures = 0

    def led(self, now: float) -> None:
        """We lead from now on: of orders of the leader before us nothing is known yet."""
        self.current = None
        self.cool_until_s = max(self.cool_until_s, now + self._settings.cooldown_s)

    def order(self, worker: Worker, to: str, reason: str, now: float) -> None:
        """Begin; `due` says when the order goes out."""
        beat = worker.report
        self.current = Flip(beat.worker, beat.epoch, beat.role, to, reason, now, repeat_s=now)

    def due(self, now: float) -> Flip | None:
        """The change whose order is to be sent (again) now."""
        flip = self.current
        if flip is None or flip.stage != "ordered" or now < flip.repeat_s:
            return None
        flip.repeat_s = now + _REPEAT_S
        return flip

    def refused(self, worker: WorkerId, epoch: Epoch, why: str, now: float) -> Flipped | None:
        """The worker said no."""
        flip = self.current
        if flip is None or (flip.worker, flip.epoch, flip.stage) != (worker, epoch, "ordered"):
            return None
        return self._over(flip, f"refused: {why}", now)

    def withdraw(self, why: str, now: float) -> Flipped | None:
        """Before the worker has begun to drain; without effect afterwards."""
        flip = self.current
        return self._over(flip, why, now) if flip and flip.stage == "ordered" else None

    def tick(self, cluster: Cluster, now: float) -> Flipped | None:
        """Follow the worker through its heartbeats; what has come to its end, if anything."""
        if self.current is None:
            self._adopt(cluster, now)
        flip = self.current
        if flip is None:
            return None
        if now - flip.since_s > self._settings.flip_limit_s:
            return self._over(flip, "it did not come back in time", now)
        worker = cluster.get(flip.worker)
        if worker is None:
            flip.stage = "starting"
            return None
        if worker.report.epoch != flip.epoch:
            return self._returned(flip, worker, now)
        return self._goes_on(flip, worker, now)

    # -- inside ----------------------------------------------------------------------------

    def _adopt(self, cluster: Cluster, now: float) -> None:
        """Somebody drains for another role by an order that we do not know of."""
        turning = [w.report for w in cluster if w.report.turning]
        if turning:
            beat = min(turning, key=lambda found: found.worker)
            self.current = Flip(
                beat.worker,
                beat.epoch,
                beat.role,
                beat.turning,
                "ordered by the leader before this one",
                now,
                "draining",
            )

    def _goes_on(self, flip: Flip, worker: Worker, now: float) -> Flipped | None:
        if worker.report.turning:
            flip.stage = "draining"
        elif flip.stage == "ordered" and worker.report.state != "ready":
            return self._over(flip, f"it is {worker.report.state} for another reason", now)
        elif flip.stage == "ordered" and now - flip.since_s > _ANSWER_S:
            return self._over(flip, "it did not answer", now)
        return None

    def _returned(self, flip: Flip, worker: Worker, now: float) -> Flipped | None:
        if worker.report.role != flip.to:
            return self._over(flip, "it started again in its old role", now)
        return self._over(flip, "done", now) if worker.ready else None

    def _over(self, flip: Flip, outcome: str, now: float) -> Flipped:
        ended = Flipped(flip.worker, flip.to, outcome, now - flip.since_s, now)
        done = outcome == "done"
        self._failures = 0 if done else self._failures + 1
        pause = min(_LONGEST_PAUSE, 2 ** max(0, self._failures - 1))
        self.cool_until_s = now + pause * self._settings.cooldown_s
        if done:
            self.takes_s += _WEIGHT * (ended.seconds - self.takes_s)
        self.counts[flip.to, "done" if done else "failed"] += 1
        self.past.append(ended)
        self.current = None
        return ended
