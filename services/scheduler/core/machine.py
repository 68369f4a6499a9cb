"""The scheduler's core: who lives, who holds what, where the next request runs.

Soft state only: everything here is rebuilt from heartbeats, block events and snapshots.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, assert_never

from services.scheduler.core.balance.balance import Balance
from services.scheduler.core.balance.settings import OFF, BalanceSettings
from services.scheduler.core.deciding import Deciding
from services.scheduler.core.events import (
    Action,
    Answer,
    BusLost,
    BusRestored,
    Disconnected,
    Event,
    LeadLost,
    LeadTaken,
    Presence,
    SnapshotFailed,
    SwitchAnswered,
    Tick,
)
from services.scheduler.core.placement.option import Chance
from services.scheduler.core.placement.settings import PlacementSettings
from services.scheduler.core.prefixes import INDEX_BYTES, PrefixIndex
from services.scheduler.core.recovery import (
    RETRIES,
    PoisonLedger,
    RetryBudget,
    RetrySettings,
    Verdict,
)
from services.scheduler.core.roster import Roster
from services.scheduler.core.world import World
from shared.errors import Code
from shared.ids import Epoch, RequestId
from shared.wire.blocks import BlocksCleared, BlockSnapshot, BlocksRemoved, BlocksStored
from shared.wire.requests import Placement, PlacementEnded, PlaceRequest, Refused
from shared.wire.workers import Heartbeat

_SEQUENCE_SPAN: Final = 1 << 32


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
    index_bytes: int = INDEX_BYTES
    balance: BalanceSettings = OFF
    reconnect_s: float = 0.3
    """How long a living worker may take to connect to the bus again."""


class SchedulerMachine:
    """State + handle(event, now) -> actions. One request of a gateway gets one answer; asking
    the same (request, attempt) again gives the same placement while its workers live. A follower
    hears the same events and answers nothing."""

    def __init__(self, settings: SchedulerSettings, chance: Chance) -> None:
        self._settings = settings
        self._now = float("-inf")
        self.counts: Counter[str] = Counter()
        index = PrefixIndex(settings.index_bytes)
        self.roster = Roster(
            settings.leader_epoch,
            settings.lost_after_s,
            settings.reconnect_s,
            self.counts,
            index,
        )
        self.cluster = self.roster.cluster
        self.index = self.roster.index
        self.world: World = self.roster.world
        self.deciding = Deciding(settings.placement, chance, self.world, self.counts)
        self.deciding.lost_after_s = settings.lost_after_s
        self.deciding.settled_at = settings.settled_at
        self.deciding.sequence = settings.leader_epoch * _SEQUENCE_SPAN
        self.deciding.leader_epoch = settings.leader_epoch
        self.poison = PoisonLedger(settings.lost_after_s)
        self.retries = RetryBudget(settings.retries)
        self.balance = Balance(settings.balance, self.world)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply one event. Late, repeated and unknown ones are counted and change nothing. A
        clock that went back stands still until it has caught up."""
        if now < self._now:
            self.counts["clock_went_back"] += 1
        now = self._now = max(now, self._now)
        match event:
            case PlaceRequest():
                return self._asked(event, now) if self.roster.leading else []
            case PlacementEnded():
                return self._ended(event, now)
            case Heartbeat():
                self.balance.heard(event)
                actions = self.roster.heard(event, now)
                if self.roster.believes(event):
                    self.poison.heard(event.worker, event.epoch)
                return actions
            case BlocksStored() | BlocksRemoved() | BlocksCleared():
                return self.roster.changed(event)
            case BlockSnapshot():
                return self.roster.part_came(event)
            case SnapshotFailed():
                self.index.abandon_snapshot(event.worker, event.epoch)
                return []
            case SwitchAnswered(worker, epoch, refusal):
                return list(self.balance.answered(worker, epoch, refusal, now))
            case Disconnected():
                return self.roster.disconnected(event)
            case Presence():
                return self.roster.answered(event)
            case _:
                return self._turn(event, now)

    def _turn(
        self, event: LeadTaken | LeadLost | BusLost | BusRestored | Tick, now: float
    ) -> list[Action]:
        """Time passed, or something happened to ourselves."""
        match event:
            case LeadTaken():
                deciding = self.deciding
                deciding.sequence = max(deciding.sequence, event.epoch * _SEQUENCE_SPAN)
                deciding.leader_epoch = event.epoch
                self.balance.led(now)
                return self.roster.take_lead(event)
            case LeadLost():
                self.roster.lead_lost()
            case BusLost():
                self.roster.bus_lost()
            case BusRestored():
                self.roster.bus_restored(now)
            case Tick():
                self.poison.expire(now)
                return self._tick(now)
            case _:
                assert_never(event)
        return []

    def _tick(self, now: float) -> list[Action]:
        actions = self.roster.tick(now)
        if self.roster.leading:
            actions += self.balance.tick(self.roster.leader_epoch, now)
        return actions

    # -- placement -----------------------------------------------------------------------

    def _asked(self, ask: PlaceRequest, now: float) -> list[Action]:
        reply = self._place(ask, now)
        self.balance.asked(ask, reply, now)
        return [Answer(reply)]

    def _place(self, ask: PlaceRequest, now: float) -> Placement | Refused:
        deciding = self.deciding
        earlier = deciding.earlier(ask)
        if earlier is not None and earlier.attempt > ask.attempt:
            return deciding.refuse(Code.STALE, "a newer attempt of this request was placed")
        if earlier is not None and earlier.attempt == ask.attempt and deciding.stands(earlier):
            self.counts["placements_repeated"] += 1
            return earlier
        self.cluster.settle(ask.request, ask.attempt)
        held_back = self._held_back(ask, now)
        if held_back is not None:
            return held_back
        reply = deciding.place(ask, self._settings.route, now)
        if isinstance(reply, Placement):
            if ask.failures:
                self.retries.again(now)
            elif ask.attempt == 1:
                self.retries.first(now)
        return reply

    def _held_back(self, ask: PlaceRequest, now: float) -> Refused | None:
        """Why this request must not run (yet), whatever room there is."""
        match self.poison.judge(ask.signature, now):
            case Verdict.POISON:
                message = "two workers died while they computed this request"
                return self.deciding.refuse(Code.POISON_REQUEST, message)
            case Verdict.WAIT:
                message = "workers died with this request; it waits for its turn to be tried alone"
                return self.deciding.refuse(Code.QUEUE_FULL, message, 0.25)
        if ask.failures and not self.retries.allows(self.cluster.running(), now):
            self.counts["retries_refused"] += 1
            return self.deciding.refuse(
                Code.QUEUE_FULL, "too many requests are being tried again", 1.0
            )
        return None

    def _ended(self, event: PlacementEnded, now: float) -> list[Action]:
        self.cluster.settle(event.request, event.attempt)
        self._learn(event)
        self.balance.ended(event, now)
        for ref in event.failed:
            self.cluster.suspect(ref)
        self.poison.ended(event, now)
        self.counts[f"ended_{event.outcome}"] += 1
        return []

    def _learn(self, event: PlacementEnded) -> None:
        """How long the answer became, and whether the promise held."""
        world, flight = self.world, self.world.flights.get(event.request)
        if flight is not None and flight.attempt <= event.attempt:
            world.flights.remove(event.request)
        placement = self.deciding.decision(event.request)
        if placement is None or placement.attempt != event.attempt:
            return
        if event.outcome == "finished":
            tenant, model = self.deciding.asked(event.request)
            world.learned.lengths.add(tenant, model, event.emitted)
        if event.ttft_s > 0.0:
            site = placement.prefill or placement.decode
            world.trust.took(site.worker, placement.estimated_ttft_s, event.ttft_s)

    def servable(self) -> tuple[str, ...]:
        """Digests of the models that a request could be placed for now, if there is room. A worker
        in doubt counts until it is found dead: a moment's doubt of all is no outage."""

        def served(role: str) -> set[str]:
            found = (w.report for w in self.cluster if w.report.role == role)
            return {beat.model_digest for beat in found if beat.state == "ready"}

        models = served("decode")
        if self._settings.route == "disaggregated":
            models &= served("prefill")
        return tuple(sorted(models))

    # -- for people and tests --------------------------------------------------------------

    def decision(self, request: RequestId) -> Placement | None:
        """The latest placement of a request, of the last thousand."""
        return self.deciding.decision(request)

    def story(self, request: RequestId) -> str:
        """What was decided about a request, and why."""
        placement = self.deciding.decision(request)
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
