"""The scheduler's core: who lives, who holds what, where the next request runs.

Soft state only: everything here is rebuilt from heartbeats, block events and snapshots.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import Final, assert_never

from services.scheduler.core.cluster import Charge
from services.scheduler.core.events import (
    Action,
    Answer,
    BusLost,
    BusRestored,
    Event,
    LeadLost,
    LeadTaken,
    SnapshotFailed,
    Tick,
)
from services.scheduler.core.placement import (
    MAX_REPORTED,
    Chance,
    Option,
    PlacementSettings,
    Placer,
    pages_needed,
    usable,
)
from services.scheduler.core.recovery import (
    RETRIES,
    PoisonLedger,
    RetryBudget,
    RetrySettings,
    Verdict,
)
from services.scheduler.core.roster import Roster
from shared.errors import Code
from shared.ids import Epoch, RequestId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.requests import Placement, PlacementEnded, PlaceRequest, Refused, WorkerRef
from shared.wire.workers import Heartbeat

_SEQUENCE_SPAN: Final = 1 << 32
_REMEMBERED: Final = 1_000
_ON_THE_WAY_S: Final = 1.0
"""A job that its worker has not reported after a beat or three is not coming: its gateway died,
or will ask again."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What the core needs to know about its world."""

    leader_epoch: Epoch
    """0: only follow until `LeadTaken`."""
    lost_after_s: float
    settled_at: float
    """Before this instant not every worker was heard: nobody there yet means 'loading'."""
    route: str
    """Applied where a request says 'auto'."""
    placement: PlacementSettings
    retries: RetrySettings = RETRIES


class SchedulerMachine:
    """State + handle(event, now) -> actions. One request of a gateway gets one answer; asking
    the same (request, attempt) again gives the same placement while its workers live. A follower
    hears the same events and answers nothing."""

    def __init__(self, settings: SchedulerSettings, chance: Chance) -> None:
        self._settings = settings
        self._placer = Placer(settings.placement, chance)
        self._sequence = settings.leader_epoch * _SEQUENCE_SPAN
        self._decisions: OrderedDict[RequestId, Placement] = OrderedDict()
        self.counts: Counter[str] = Counter()
        self.roster = Roster(settings.leader_epoch, settings.lost_after_s, self.counts)
        self.cluster = self.roster.cluster
        self.index = self.roster.index
        self.poison = PoisonLedger()
        self.retries = RetryBudget(settings.retries)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply one event. Late, repeated and unknown ones are counted and change nothing."""
        match event:
            case PlaceRequest():
                return [Answer(self._place(event, now))] if self.roster.leading else []
            case PlacementEnded():
                return self._ended(event, now)
            case Heartbeat():
                return self.roster.heard(event, now)
            case BlocksStored() | BlocksRemoved() | BlocksCleared():
                return self.roster.changed(event)
            case BlockSnapshot():
                return self.roster.part_came(event)
            case SnapshotFailed():
                self.index.abandon_snapshot(event.worker, event.epoch)
                return []
            case _:
                return self._turn(event, now)

    def _turn(
        self, event: LeadTaken | LeadLost | BusLost | BusRestored | Tick, now: float
    ) -> list[Action]:
        """Time passed, or something happened to ourselves."""
        match event:
            case LeadTaken():
                self._sequence = max(self._sequence, event.epoch * _SEQUENCE_SPAN)
                return self.roster.take_lead(event)
            case LeadLost():
                self.roster.leading = False
            case BusLost():
                self.roster.bus_lost()
            case BusRestored():
                self.roster.bus_restored(now)
            case Tick():
                self.poison.expire(now)
                return self.roster.tick(now)
            case _:
                assert_never(event)
        return []

    # -- placement -----------------------------------------------------------------------

    def _place(self, ask: PlaceRequest, now: float) -> Placement | Refused:
        earlier = self._decisions.get(ask.request)
        if earlier is not None and earlier.attempt > ask.attempt:
            return self._refuse(Code.STALE, "a newer attempt of this request was placed")
        if earlier is not None and earlier.attempt == ask.attempt and self._stands(earlier):
            self.counts["placements_repeated"] += 1
            return earlier
        self.cluster.settle(ask.request, ask.attempt)
        held_back = self._held_back(ask, now)
        if held_back is not None:
            return held_back
        if ask.route == "auto" and self._settings.route != "auto":
            ask = replace(ask, route=self._settings.route)
        depths = self.index.depths(ask.block_hashes, now)
        options = self._placer.options(ask, self.cluster, depths, now)
        if not options:
            return self._no_option(ask, now)
        return self._decide(ask, self._placer.choose(options), options, now)

    def _held_back(self, ask: PlaceRequest, now: float) -> Refused | None:
        """Why this request must not run (yet), whatever room there is."""
        match self.poison.judge(ask.signature, now):
            case Verdict.POISON:
                message = "two workers died while they computed this request"
                return self._refuse(Code.POISON_REQUEST, message)
            case Verdict.WAIT:
                message = "workers died with this request; it waits for its turn to be tried alone"
                return self._refuse(Code.QUEUE_FULL, message, 0.25)
        if ask.failures and not self.retries.allows(self.cluster.running(), now):
            self.counts["retries_refused"] += 1
            return self._refuse(Code.QUEUE_FULL, "too many requests are being tried again", 1.0)
        return None

    def _decide(
        self, ask: PlaceRequest, chosen: Option, options: list[Option], now: float
    ) -> Placement:
        self._sequence += 1
        ranked = sorted(options, key=lambda o: o.candidate.score_s)
        route = "disaggregated" if chosen.prefill else "colocated"
        placement = Placement(
            request=ask.request,
            attempt=ask.attempt,
            sequence=self._sequence,
            leader_epoch=self.roster.leader_epoch,
            route=route,
            prefill=chosen.prefill.ref if chosen.prefill else None,
            decode=chosen.decode.ref,
            kvpool=self._pool(ask, now),
            cached_blocks=chosen.cached_blocks,
            estimated_ttft_s=chosen.ttft_s,
            reason=f"least score of {len(options)}: {chosen.candidate.note}",
            candidates=tuple(o.candidate for o in ranked[:MAX_REPORTED]),
        )
        self._charge(ask, chosen, now)
        if ask.failures:
            self.retries.again(now)
        elif ask.attempt == 1:
            self.retries.first(now)
        computing = chosen.prefill or chosen.decode
        self.index.predict(computing.report.worker, ask.block_hashes, now)
        self._decisions[ask.request] = placement
        while len(self._decisions) > _REMEMBERED:
            self._decisions.popitem(last=False)
        self.counts[f"placements_{route}"] += 1
        return placement

    def _charge(self, ask: PlaceRequest, chosen: Option, now: float) -> None:
        expires = now + min(ask.deadline_s, self._settings.lost_after_s + _ON_THE_WAY_S)
        decode_work_s = 0.0 if chosen.prefill else chosen.work_s
        pages = pages_needed(ask, chosen.decode)
        shares = [(chosen.decode, decode_work_s, pages)]
        if chosen.prefill:
            shares.append((chosen.prefill, chosen.work_s, 0))
        for worker, work_s, taken in shares:
            tokens = ask.prompt_tokens if work_s else 0
            charge = Charge(
                self._sequence, ask.request, ask.attempt, work_s, taken, expires, tokens
            )
            self.cluster.charge(worker.report.worker, charge)

    def _pool(self, ask: PlaceRequest, now: float) -> WorkerRef | None:
        """The pool node with the deepest prefix; any ready one when none holds a block."""
        pools = self.cluster.of_role("kvpool")
        depths = self.index.depths(ask.block_hashes, now)
        best = max(pools, key=lambda p: depths.get(p.report.worker, 0), default=None)
        return best.ref if best else None

    def _no_option(self, ask: PlaceRequest, now: float) -> Refused:
        if now < self._settings.settled_at:
            return self._refuse(Code.LOADING, "workers are still being heard", 1.0)
        decodes = self.cluster.of_role("decode")
        if decodes and not [d for d in decodes if d.report.model_digest == ask.model_digest]:
            return self._refuse(Code.INCOMPATIBLE_WORKERS, "no worker serves this model", 5.0)
        able = usable(decodes, ask)
        if able and all(d.report.load.pages_total < pages_needed(ask, d) for d in able):
            return self._refuse(Code.KV_PAGES_EXHAUSTED, "no decode worker is large enough")
        if able and all(d.pages_free() < pages_needed(ask, d) for d in able):
            return self._refuse(Code.KV_PAGES_EXHAUSTED, "all decode workers are full", 1.0)
        layouts = {worker.report.layout_digest for worker in able}
        prefills = {worker.report.layout_digest for worker in self.cluster.of_role("prefill")}
        if able and prefills and prefills.isdisjoint(layouts):
            return self._refuse(Code.INCOMPATIBLE_WORKERS, "no prefill and decode match", 5.0)
        return self._refuse(Code.NO_WORKER, "no worker is ready for this route", 1.0)

    def _refuse(self, code: Code, message: str, retry_after_s: float | None = None) -> Refused:
        self.counts[f"refused_{code.value}"] += 1
        return Refused(code.value, message, retry_after_s)

    def _stands(self, placement: Placement) -> bool:
        """Whether all incarnations of an earlier decision are still there, and we still lead in
        the epoch in which it was made (gateways refuse an older one)."""
        if placement.leader_epoch != self.roster.leader_epoch:
            return False
        refs = [placement.decode, *([placement.prefill] if placement.prefill else [])]
        return all(self._alive(ref) for ref in refs)

    def _alive(self, ref: WorkerRef) -> bool:
        worker = self.cluster.get(ref.worker)
        return worker is not None and worker.report.epoch == ref.epoch

    def _ended(self, event: PlacementEnded, now: float) -> list[Action]:
        self.cluster.settle(event.request, event.attempt)
        for ref in event.failed:
            self.cluster.suspect(ref)
        self.poison.ended(event, now)
        self.counts[f"ended_{event.outcome}"] += 1
        return []

    def servable(self) -> tuple[str, ...]:
        """Digests of the models that a request could be placed for now, if there is room."""
        models = {worker.report.model_digest for worker in self.cluster.of_role("decode")}
        if self._settings.route == "disaggregated":
            models &= {worker.report.model_digest for worker in self.cluster.of_role("prefill")}
        return tuple(sorted(models))

    # -- for people and tests --------------------------------------------------------------

    def decision(self, request: RequestId) -> Placement | None:
        """The latest placement of a request, of the last thousand."""
        return self._decisions.get(request)

    def story(self, request: RequestId) -> str:
        """What was decided about a request, and why."""
        placement = self._decisions.get(request)
        if placement is None:
            return f"{request}: never placed (or forgotten)"
        lines = [f"{request} attempt {placement.attempt}: {placement.route}, {placement.reason}"]
        for candidate in placement.candidates:
            pair = f"{candidate.prefill or 'colocated'} + {candidate.decode}"
            lines.append(f"  {pair}: {candidate.score_s:.4f} s {candidate.terms}")
        return "\n".join(lines)

    def check(self) -> None:
        """Re-derive what must hold. Raises AssertionError."""
        self.cluster.check()
        self.index.check()
