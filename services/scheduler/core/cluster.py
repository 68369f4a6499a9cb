"""Who is alive, what they reported, and what was placed on them since that report.

Load is the worker's own report plus the charges of placements the report had not seen; a charge
dies with the report that saw it, the end of its attempt, a newer attempt, the worker's epoch, or
after the few beats in which a report must have seen it. So nothing phantom outlives its cause.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from services.scheduler.core.columns import Columns
from services.scheduler.core.groups import Group, Groups
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire.requests import WorkerRef
from shared.wire.workers import Heartbeat

MOST_WORKERS: Final = 8192
_MOST_EPOCHS: Final = 65_536


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
    fixed_s: float = 0.0
    """Of `work_s`: what it need not pay where it shares a step with others."""
    placed_s: float = float("-inf")
    """When; its work cannot have begun before."""


@dataclass(slots=True)
class Worker:
    """One incarnation as the scheduler sees it."""

    report: Heartbeat
    seen: float
    """When it was last heard."""
    charges: dict[int, Charge] = field(default_factory=dict)
    suspected: bool = False
    """A gateway could not use it; cleared by the next heartbeat."""
    row: int = -1
    """In the cluster's columns."""
    done_s: float = 0.0
    """When all that was reported and placed will be done: it works without a pause while there is
    something to do."""
    step_ends_s: float = 0.0
    """When the step that runs will be over: who comes before shares the next one with those that
    wait already."""
    charged_pages: int = 0
    charged_tokens: int = 0
    """Sums over `charges`."""
    ends_s: dict[int, float] = field(default_factory=dict)
    """When the work of each charge will be done."""

    @property
    def ref(self) -> WorkerRef:
        beat = self.report
        return WorkerRef(beat.worker, beat.epoch, beat.plane_address)

    @property
    def ready(self) -> bool:
        return self.report.state == "ready" and not self.suspected

    def wait_s(self, now: float) -> float:
        """Seconds until a job placed now would start."""
        return max(0.0, self.done_s - now)

    def pages_free(self) -> int:
        """Pages a new job could get, less those promised since the report."""
        return self.report.load.pages_free - self.charged_pages

    def streams(self) -> int:
        """Sequences that run there or are on their way."""
        return self.report.load.running_sequences + len(self.charges)

    def requests(self) -> int:
        """Jobs that wait or run there, or are on their way."""
        return self.report.load.queued_requests + self.streams()

    def tokens(self) -> int:
        """Prompt tokens that wait there or are on their way."""
        return self.report.load.queued_tokens + self.charged_tokens

    def pages_used(self) -> int:
        """Pages in use or promised."""
        load = self.report.load
        return load.pages_total - load.pages_free + self.charged_pages

    def begin(self) -> None:
        """A report came: what it had not seen follows what it has."""
        self.done_s = self.step_ends_s = self.seen + self.report.load.work_left_s
        for charge in self.charges.values():
            self.follow(charge)

    def joins(self, now: float) -> bool:
        """Whether a job placed now would share the next step with others."""
        return now < self.step_ends_s < self.done_s

    def follow(self, charge: Charge) -> None:
        """Its work comes after all other, in one step with what waits."""
        placed_s = charge.placed_s
        if self.joins(placed_s):
            self.done_s += charge.work_s - charge.fixed_s
        else:
            self.done_s = max(self.done_s, placed_s)
            self.step_ends_s = self.done_s
            self.done_s += charge.work_s
            if self.step_ends_s <= placed_s:
                self.step_ends_s = self.done_s
        self.ends_s[charge.sequence] = self.done_s

    def take_off(self, sequence: int, now: float) -> Charge:
        """A charge is over: what of its work could not be done by `now` never will be."""
        charge = self.charges.pop(sequence)
        self.done_s -= min(charge.work_s, max(0.0, self.ends_s.pop(sequence) - now))
        self.charged_pages -= charge.pages
        self.charged_tokens -= charge.tokens
        return charge


class Cluster:
    """All workers by id, each at its newest epoch."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, Worker] = {}
        self._epochs: OrderedDict[WorkerId, Epoch] = OrderedDict()
        self._charged: dict[RequestId, set[WorkerId]] = {}
        self._unreachable: dict[tuple[WorkerId, WorkerId], float] = {}
        self._now = float("-inf")
        """The latest moment that anything told."""
        self.refused = 0
        self.beyond = 0
        """Heartbeats of workers beyond the most that are followed."""
        self.columns = Columns()
        self.groups = Groups()

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
        return list(self.groups.of_role(role, self._workers.values()))

    def group(self, role: str, model: str) -> Group:
        """Ready workers of a role that serve a model."""
        return self.groups.of_model(role, model, self._workers.values())

    def doubted(self, role: str, model: str) -> bool:
        """Whether a worker that could serve this is only waited for: a gateway could not use it,
        and its next heartbeat will tell."""
        return any(
            worker.suspected
            and worker.report.state == "ready"
            and (worker.report.role, worker.report.model_digest) == (role, model)
            for worker in self
        )

    def learn_epoch(self, worker: WorkerId, epoch: Epoch) -> Worker | None:
        """A new incarnation was registered. The older one, if it was still listed, is gone."""
        if epoch <= self._epochs.get(worker, 0):
            return None
        self._learn(worker, epoch)
        known = self._workers.get(worker)
        return self.remove(worker) if known and known.report.epoch < epoch else None

    def hear(self, beat: Heartbeat, now: float) -> bool:
        """Take in a heartbeat; False when it is from an older incarnation or out of order."""
        self._now = max(self._now, now)
        if beat.epoch < self._epochs.get(beat.worker, 0):
            self.refused += 1
            return False
        known = self._workers.get(beat.worker)
        if known is not None and known.report.sequence >= beat.sequence:
            self.refused += 1
            return False
        if known is None and len(self._workers) >= MOST_WORKERS:
            self.beyond += 1
            return False
        self._learn(beat.worker, beat.epoch)
        if known is None:
            known = self._workers[beat.worker] = Worker(beat, now, row=self.columns.take())
            self.groups.change()
        else:
            if known.suspected or _traits(known.report) != _traits(beat):
                self.groups.change()
            known.report, known.seen, known.suspected = beat, now, False
            for sequence in [s for s in known.charges if s <= beat.load.placement_sequence]:
                self._forget(known, sequence)
        known.begin()
        load = beat.load
        self.columns.report(known.row, known.done_s, load.pages_free, load.running_sequences)
        self._show(known)
        for peer in beat.peers_lost:
            self._unreachable[beat.worker, peer] = now + 5.0
        return True

    def suspect(self, ref: WorkerRef) -> None:
        """Somebody could not use this incarnation: place nothing there until it beats again."""
        known = self._workers.get(ref.worker)
        if known is not None and known.report.epoch == ref.epoch:
            known.suspected = True
            self.groups.change()

    def remove(self, worker: WorkerId) -> Worker | None:
        """Forget a worker and all that was charged to it."""
        gone = self._workers.pop(worker, None)
        if gone is not None:
            for sequence in list(gone.charges):
                self._drop(gone, sequence)
            self.columns.give(gone.row)
            self.groups.change()
        return gone

    def silent(self, now: float, after_s: float) -> list[Worker]:
        """Workers that were not heard for `after_s`."""
        return [worker for worker in self if now - worker.seen > after_s]

    def refresh(self, now: float) -> None:
        """Silence so far proves nothing (the bus was down): start counting anew."""
        for worker in self:
            worker.seen = now
            worker.begin()
            self._show(worker)

    def reachable(self, reader: WorkerId, owner: WorkerId, now: float) -> bool:
        """Whether `reader` did not lately complain about `owner`'s data plane."""
        return self._unreachable.get((reader, owner), 0.0) <= now

    # -- charges -----------------------------------------------------------------------

    def charge(self, worker: WorkerId, charge: Charge) -> None:
        """Count a placement against a worker until it is reported or over."""
        charged = self._workers[worker]
        self._now = max(self._now, charge.placed_s)
        charged.charges[charge.sequence] = charge
        charged.follow(charge)
        charged.charged_pages += charge.pages
        charged.charged_tokens += charge.tokens
        self._show(charged)
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
        self._now = max(self._now, now)
        for worker in self:
            for charge in list(worker.charges.values()):
                if charge.expires <= now:
                    self._drop(worker, charge.sequence)
        for pair in [p for p, until in self._unreachable.items() if until <= now]:
            del self._unreachable[pair]

    def charges(self) -> int:
        return sum(len(worker.charges) for worker in self)

    def _drop(self, worker: Worker, sequence: int) -> None:
        self._forget(worker, sequence)
        self._show(worker)

    def _forget(self, worker: Worker, sequence: int) -> None:
        charge = worker.take_off(sequence, self._now)
        if not any(c.request == charge.request for c in worker.charges.values()):
            holders = self._charged[charge.request]
            holders.discard(worker.report.worker)
            if not holders:
                del self._charged[charge.request]

    def _show(self, worker: Worker) -> None:
        charges = len(worker.charges)
        self.columns.charge(worker.row, worker.done_s, worker.charged_pages, charges)

    def _learn(self, worker: WorkerId, epoch: Epoch) -> None:
        """Epochs of the long dead are forgotten: the store would not give an old one again."""
        self._epochs[worker] = epoch
        if len(self._epochs) > _MOST_EPOCHS:
            dead = next((name for name in self._epochs if name not in self._workers), None)
            if dead is not None:
                del self._epochs[dead]

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


def _traits(beat: Heartbeat) -> tuple[str, str, str, str, int]:
    """What decides about groups."""
    return beat.role, beat.state, beat.model_digest, beat.layout_digest, beat.block_tokens
