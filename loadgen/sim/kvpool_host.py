"""A simulated pool node: the real machine behind a shell of a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from loadgen.sim.bus import Respond
from loadgen.sim.flight import ReadOutcome
from loadgen.sim.membership import FREE
from loadgen.sim.plane import Ask
from loadgen.sim.scene import Scene
from loadgen.sim.worker import Worker
from services.kvpool.core import actions as act
from services.kvpool.core import events as on
from services.kvpool.core.machine import PoolMachine
from services.kvpool.core.state import PoolLimits
from shared.bus.headers import Headers
from shared.errors import Code
from shared.ids import Epoch, Generation, PageId
from shared.wire import subjects
from shared.wire.blocks import LookupBlocks, OfferBlocks, ReleaseBlocks
from shared.wire.codec import Message
from shared.wire.workers import CostModel, WorkerLoad, WorkerLost

_PATIENCE_S = 30.0


class KvPoolHost(Worker):
    """One incarnation."""

    role = "kvpool"
    tier = "host"

    def __init__(self, scene: Scene, name: str, incarnation: int) -> None:
        super().__init__(scene, name, incarnation, scene.case.shape.kvpool_pages)
        self.machine: PoolMachine | None = None
        self._addresses: dict[tuple[str, Epoch], str] = {}

    def _begin(self, epoch: Epoch) -> None:
        limits = PoolLimits(
            layout_digest=self.scene.works.model.layout_digest,
            lease_s=self.scene.case.shape.lease_s,
            waiting_offers=4,
            running_offers=2,
            pull_pages=self.scene.case.shape.kvpool_pull_pages,
            pull_timeout_s=self.scene.pace.pull_s,
            leases=8,
        )
        self.machine = PoolMachine(self.ref, self.cache, limits)
        bus = self.scene.bus
        bus.subscribe(self, subjects.pool(self.membership.worker), self._on_blocks)
        bus.subscribe(self, subjects.LOST, self._on_lost)
        self.tick(self.scene.pace.tick_s, on.Ticked())

    # -- the core --------------------------------------------------------------------------

    def handle(self, event: on.Event, now: float) -> Sequence[act.Action]:
        return self._core().handle(event, now)

    def check(self) -> None:
        self._core().check()

    def story(self, request: str) -> str:
        return ""

    @property
    def at_work(self) -> bool:
        return self.machine is not None and not self.machine.at_rest

    @property
    def missed(self) -> bool:
        return self.at_work or bool(self.blocks())

    def leftovers(self) -> list[str]:
        if self.machine is None:
            return ["never joined"]
        counts, lost = self.cache.counts(), self.machine.counts.get("pages_lost", 0)
        left = [] if self.machine.at_rest else [f"not at rest: {counts}"]
        if counts.referenced or counts.leased or counts.quarantined != lost:
            left.append(f"held pages, {lost} were given up: {counts}")
        return left

    def tally(self) -> dict[str, int]:
        counts = {} if self.machine is None else self.machine.counts
        return {
            "arena_full": counts.get("offers_full", 0),
            "eviction": self.evicted,
            "lease_expired": counts.get("leases_expired", 0),
            "stale_refused": counts.get("reads_refused", 0) + counts.get("fenced_epoch", 0),
        }

    def _cost(self) -> CostModel:
        return FREE

    def load(self) -> WorkerLoad:
        return WorkerLoad(0, 0, 0, 0.0, self.cache.counts().total, self.cache.available, 0)

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        machine = self.machine
        return None if machine is None else machine.open_read(ticket, pages, self.now())

    def close_read(self, read: int) -> None:
        self.feed(on.ReadEnded(read))

    def _core(self) -> PoolMachine:
        if self.machine is None:
            raise AssertionError("an event before the epoch")
        return self.machine

    # -- what comes in ---------------------------------------------------------------------

    def _on_blocks(self, message: Message, headers: Headers, respond: Respond) -> None:
        call = self.call(respond)
        match message:
            case OfferBlocks():
                left_s = headers.deadline_s
                self.feed(on.OfferArrived(call, message, _PATIENCE_S if left_s is None else left_s))
            case LookupBlocks():
                ticket = f"{self.chance.getrandbits(64):016x}"
                self.feed(on.LookupArrived(call, message, ticket))
            case ReleaseBlocks():
                self.feed(on.ReleaseArrived(call, message))

    def _on_lost(self, message: Message, _: Headers, __: Respond) -> None:
        if not isinstance(message, WorkerLost) or self.membership.declared_lost(message):
            return
        self.feed(on.PeerLost(message))
        for worker, epoch in list(self._addresses):
            if worker == message.worker and epoch <= message.epoch:
                self.scene.plane.forget(self, self._addresses.pop((worker, epoch)))

    # -- what goes out ---------------------------------------------------------------------

    def perform(self, action: act.Action) -> None:
        match action:
            case act.Reply(call, message):
                self.answer(call, message)
            case act.Pull():
                self._pull(action)
            case act.PublishBlocks(events):
                self.published(events)
            case act.Traced():
                pass
            case _:
                assert_never(action)

    def _pull(self, action: act.Pull) -> None:
        """Read from the owner, hash what landed."""
        owner, targets = action.owner, [read.target for read in action.reads]
        self._addresses[owner.worker, owner.epoch] = owner.plane_address

        def ended(outcome: ReadOutcome) -> None:
            if outcome.error is None:
                self.engine.sums(targets, lambda found: self.feed(on.PullEnded(action.pull, found)))
                return
            if outcome.error is not Code.STALE:
                self.membership.peer_lost(owner.worker)
            self.feed(on.PullFailed(action.pull, outcome.settled, outcome.error.value))

        ask = Ask(owner.plane_address, action.ticket, action.reads, action.timeout_s)
        self.scene.plane.read(self, ask, ended)
