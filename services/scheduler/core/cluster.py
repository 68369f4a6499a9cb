"""Who is alive, what they reported, and what was placed on them since that report.

Load is the worker's own report plus the charges of placements the report had not seen; a charge
dies with the report that saw it, the end of its attempt, a newer attempt, the worker's epoch, or
after the few beats in which a report must have seen it. So nothing phantom outlives its cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire.requests import WorkerRef
from shared.wire.workers import Heartbeat


@dataclass(frozen=True, slots=True)
class Charge:
    """Work that a placement put on a worker before the worker reported it."""

    sequence: int
    request: RequestId
    attempt: Attempt
    work_s: float
    pages: int
    expires: float
    tokens: int = 0
    """Of the prompt, where it is to be computed."""


@dataclass(slots=True)
class Worker:
    """One incarnation as the scheduler sees it."""

    report: Heartbeat
    seen: float
    """When it was last heard."""
    charges: dict[int, Charge] = field(default_factory=dict)
    suspected: bool = False
    """A gateway could not use it; cleared by the next heartbeat."""

    @property
    def ref(self) -> WorkerRef:
        beat = self.report
        return WorkerRef(beat.worker, beat.epoch, beat.plane_address)

    @property
    def ready(self) -> bool:
        return self.report.state == "ready" and not self.suspected

    def wait_s(self, now: float) -> float:
        """Seconds until a job placed now would start."""
        reported = max(0.0, self.report.load.work_left_s - (now - self.seen))
        return reported + sum(charge.work_s for charge in self.charges.values())

    def pages_free(self) -> int:
        """Pages a new job could get, less those promised since the report."""
        return self.report.load.pages_free - sum(c.pages for c in self.charges.values())


class Cluster:
    """All workers by id, each at its newest epoch."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, Worker] = {}
        self._epochs: dict[WorkerId, Epoch] = {}
        self._charged: dict[RequestId, set[WorkerId]] = {}
        self._unreachable: dict[tuple[WorkerId, WorkerId], float] = {}
        self.refused = 0

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, worker: WorkerId) -> Worker | None:
        return self._workers.get(worker)

    def epoch_of(self, worker: WorkerId) -> Epoch:
        """The newest epoch known of this id, of a living or a dead incarnation."""
        return self._epochs.get(worker, Epoch(0))

    def running(self) -> int:
        """Sequences that decode workers report."""
        decodes = (w for w in self if w.report.role == "decode")
        return sum(worker.report.load.running_sequences for worker in decodes)

    def of_role(self, role: str) -> list[Worker]:
        """Ready workers of a role, in a stable order."""
        found = [w for w in self._workers.values() if w.report.role == role and w.ready]
        return sorted(found, key=lambda worker: worker.report.worker)

    def learn_epoch(self, worker: WorkerId, epoch: Epoch) -> Worker | None:
        """A new incarnation was registered. The older one, if it was still listed, is gone."""
        if epoch <= self._epochs.get(worker, 0):
            return None
        self._epochs[worker] = epoch
        known = self._workers.get(worker)
        return self.remove(worker) if known and known.report.epoch < epoch else None

    def hear(self, beat: Heartbeat, now: float) -> bool:
        """Take in a heartbeat; False when it is from an older incarnation or out of order."""
        if beat.epoch < self._epochs.get(beat.worker, 0):
            self.refused += 1
            return False
        known = self._workers.get(beat.worker)
        if known is not None and known.report.sequence >= beat.sequence:
            self.refused += 1
            return False
        self._epochs[beat.worker] = beat.epoch
        if known is None:
            self._workers[beat.worker] = Worker(beat, now)
        else:
            known.report, known.seen, known.suspected = beat, now, False
            for sequence in [s for s in known.charges if s <= beat.load.placement_sequence]:
                self._drop(known, sequence)
        for peer in beat.peers_lost:
            self._unreachable[beat.worker, peer] = now + 5.0
        return True

    def suspect(self, ref: WorkerRef) -> None:
        """Somebody could not use this incarnation: place nothing there until it beats again."""
        known = self._workers.get(ref.worker)
        if known is not None and known.report.epoch == ref.epoch:
            known.suspected = True

    def remove(self, worker: WorkerId) -> Worker | None:
        """Forget a worker and all that was charged to it."""
        gone = self._workers.pop(worker, None)
        if gone is not None:
            for sequence in list(gone.charges):
                self._drop(gone, sequence)
        return gone

    def silent(self, now: float, after_s: float) -> list[Worker]:
        """Workers that were not heard for `after_s`."""
        return [worker for worker in self if now - worker.seen > after_s]

    def refresh(self, now: float) -> None:
        """Silence so far proves nothing (the bus was down): start counting anew."""
        for worker in self:
            worker.seen = now

    def reachable(self, reader: WorkerId, owner: WorkerId, now: float) -> bool:
        """Whether `reader` did not lately complain about `owner`'s data plane."""
        return self._unreachable.get((reader, owner), 0.0) <= now

    # -- charges -----------------------------------------------------------------------

    def charge(self, worker: WorkerId, charge: Charge) -> None:
        """Count a placement against a worker until it is reported or over."""
        self._workers[worker].charges[charge.sequence] = charge
        self._charged.setdefault(charge.request, set()).add(worker)

    def settle(self, request: RequestId, attempt: Attempt) -> None:
        """This attempt (and older ones) occupy nobody any more."""
        for name in list(self._charged.get(request, ())):
            worker = self._workers[name]
            for charge in list(worker.charges.values()):
                if charge.request == request and charge.attempt <= attempt:
                    self._drop(worker, charge.sequence)

    def expire(self, now: float) -> None:
        """Drop charges past their deadline and old reachability complaints."""
        for worker in self:
            for charge in list(worker.charges.values()):
                if charge.expires <= now:
                    self._drop(worker, charge.sequence)
        for pair in [p for p, until in self._unreachable.items() if until <= now]:
            del self._unreachable[pair]

    def charges(self) -> int:
        return sum(len(worker.charges) for worker in self)

    def _drop(self, worker: Worker, sequence: int) -> None:
        charge = worker.charges.pop(sequence)
        if not any(c.request == charge.request for c in worker.charges.values()):
            holders = self._charged[charge.request]
            holders.discard(worker.report.worker)
            if not holders:
                del self._charged[charge.request]

    def check(self) -> None:
        """Charges and their reverse index agree. Raises AssertionError."""
        derived: dict[RequestId, set[WorkerId]] = {}
        for worker in self:
            for charge in worker.charges.values():
                derived.setdefault(charge.request, set()).add(worker.report.worker)
            if worker.report.epoch < self._epochs[worker.report.worker]:
                raise AssertionError(f"{worker.report.worker} is listed at an old epoch")
        if derived != self._charged:
            raise AssertionError("charges differ from their index")
