"""A simulated prefill worker: the real machine behind a shell of a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import assert_never

from loadgen.sim.bus import Answer, Respond
from loadgen.sim.flight import ReadOutcome
from loadgen.sim.plane import Ask
from loadgen.sim.scene import Scene
from loadgen.sim.sender import Sending
from loadgen.sim.worker import Worker
from services.prefill.core import actions as act
from services.prefill.core import events as on
from services.prefill.core.machine import Machine
from services.prefill.core.state import Limits
from shared.bus.headers import Headers
from shared.errors import Code
from shared.ids import Epoch, Generation, PageId, RequestId, WorkerId
from shared.kv.hashing import CacheIdentity
from shared.wire import subjects
from shared.wire.blocks import BlocksFound, BlocksKept, LookupBlocks, ReleaseBlocks
from shared.wire.codec import Message
from shared.wire.requests import (
    Acknowledged,
    CancelRequest,
    PrefillJob,
    Refused,
    ReleaseLease,
    RenewLeases,
    ResendTokens,
)
from shared.wire.workers import WorkerLoad, WorkerLost

_Key = tuple[str, int]


class PrefillHost(Worker):
    """One incarnation."""

    role = "prefill"

    def __init__(self, scene: Scene, name: str, incarnation: int) -> None:
        super().__init__(scene, name, incarnation, scene.case.shape.prefill_pages)
        self.machine: Machine | None = None
        self._closed: set[_Key] = set()
        self._addresses: dict[tuple[str, Epoch], str] = {}

    def _begin(self, epoch: Epoch) -> None:
        scene, shape, model = self.scene, self.scene.case.shape, self.scene.works.model
        limits = Limits(
            block_tokens=model.block_tokens,
            chunk_tokens=shape.chunk_tokens,
            queue_limit=shape.queue_limit,
            context_tokens=model.context_tokens,
            vocab_size=model.vocab_size,
            layout_digest=model.layout_digest,
            lease_s=shape.lease_s,
            grace_s=scene.pace.grace_s,
            cost=self.cost,
        )
        identity = CacheIdentity(
            "", model.digest, model.tokenizer_digest, model.dtype, model.block_tokens
        )
        self.machine = Machine(self.ref, limits, identity, self.cache)
        scene.bus.subscribe(self, subjects.job("prefill", self.membership.worker), self._on_job)
        scene.bus.subscribe(self, subjects.leases(self.membership.worker), self._on_lease)
        scene.bus.subscribe(self, subjects.lookups(self.membership.worker), self._on_lookup)
        scene.bus.subscribe(self, subjects.LOST, self._on_lost)
        self.tick(scene.pace.tick_s, on.Tick())

    # -- the core --------------------------------------------------------------------------

    def handle(self, event: on.Event, now: float) -> Sequence[act.Action]:
        return self._core().handle(event, now)

    def check(self) -> None:
        self._core().check()

    def story(self, request: str) -> str:
        return "" if self.machine is None else self.machine.story(RequestId(request))

    @property
    def at_work(self) -> bool:
        machine = self.machine
        return machine is not None and not machine.idle

    def leftovers(self) -> list[str]:
        if self.machine is None:
            return ["never joined"]
        found, counts = self.machine.accounting(), self.cache.counts()
        lost = self.machine.counters["pages_abandoned"]
        held = counts.total - counts.free - counts.cached - counts.quarantined
        what = {name: found[name] for name in ("leases", "requests", "open_reads") if found[name]}
        left = [f"{name}: {count}" for name, count in what.items()]
        if held or counts.quarantined != lost:
            left.append(f"held pages: {held}, {lost} were given up: {counts}")
        return left if self.machine.idle else [*left, "not idle"]

    def tally(self) -> dict[str, int]:
        counts = self._core().counters if self.machine else Counter[str]()
        stale = counts["fenced_attempt"] + counts["fenced_epoch"] + counts["fenced_generation"]
        return {
            "lease_expired": counts["lease_expiries"],
            "eviction": self.evicted,
            "stale_refused": stale,
        }

    def load(self) -> WorkerLoad:
        return super().load() if self.machine is None else self.machine.load(self.now())

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        machine = self.machine
        return None if machine is None else machine.open_read(ticket, pages, self.now())

    def close_read(self, read: int) -> None:
        self.feed(on.ReadEnded(read))

    def _core(self) -> Machine:
        if self.machine is None:
            raise AssertionError("an event before the epoch")
        return self.machine

    # -- what comes in ---------------------------------------------------------------------

    def _on_job(self, message: Message, headers: Headers, respond: Respond) -> None:
        call = self.call(respond)
        match message:
            case PrefillJob():
                ticket, offer = (f"{self.chance.getrandbits(64):016x}" for _ in range(2))
                self.feed(on.JobArrived(call, message, ticket, offer, "", headers.epoch))
            case CancelRequest():
                self.feed(on.CancelArrived(call, message))
            case ResendTokens():
                self.feed(on.ResendArrived(call, message))

    def _on_lease(self, message: Message, _: Headers, respond: Respond) -> None:
        call = self.call(respond)
        match message:
            case RenewLeases():
                self.feed(on.RenewArrived(call, message))
            case ReleaseLease():
                self.feed(on.ReleaseArrived(call, message))

    def _on_lookup(self, message: Message, _: Headers, respond: Respond) -> None:
        call = self.call(respond)
        match message:
            case LookupBlocks():
                ticket = f"{self.chance.getrandbits(64):016x}"
                self.feed(on.LookupArrived(call, message, ticket))
            case ReleaseBlocks():
                self.feed(on.LoanReturned(call, message))

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
            case act.JobClosed():
                self._closed.add((action.request, action.attempt))
            case act.JobOpened() | act.Traced():
                pass
            case act.RunStep() | act.SumPages():
                self._engine(action)
            case act.PublishBlocks(events):
                self.published(events)
            case act.EmitTokens(gateway, chunk):
                self._publish(subjects.tokens(gateway), chunk)
            case act.FailJob():
                self._publish(subjects.tokens(action.gateway), action.failed)
                limit_s = self.scene.pace.notice_s
                self._send(subjects.pages(action.decode.worker), action.notice, limit_s)
            case act.SendPages():
                self._send_pages(action)
            case act.Lookup() | act.Pull() | act.Offer() | act.ReleasePool():
                self._with_pool(action)
            case _:
                assert_never(action)

    def _engine(self, action: act.RunStep | act.SumPages) -> None:
        step = action.step
        if isinstance(action, act.SumPages):
            self.engine.sums(action.pages, lambda sums: self.feed(on.PagesSummed(step, sums)))
            return

        def ended(tokens: tuple[int | None, ...] | None) -> None:
            if tokens is None:
                self.feed(on.StepFailed(step, "the engine failed"))
            else:
                self.feed(on.StepEnded(step, tokens, 0.01))

        self.engine.step(action.items, ended)

    def _send_pages(self, action: act.SendPages) -> None:
        ready = action.ready
        key = (ready.request, ready.attempt, ready.chunk)

        def answered(answer: Answer) -> None:
            match answer:
                case Acknowledged():
                    self.feed(on.PagesAcknowledged(*key))
                case Refused(code=code):
                    self.feed(on.PagesRefused(*key, code))
                case _:
                    self.feed(on.PagesRefused(*key, Code.INTERNAL))

        subject, job = subjects.pages(action.decode.worker), (ready.request, ready.attempt)
        limit_s = self.scene.pace.pages_s
        self._send(subject, ready, limit_s, answered, lambda: job not in self._closed)

    def _with_pool(self, action: act.Lookup | act.Pull | act.Offer | act.ReleasePool) -> None:
        match action:
            case act.Lookup():
                self._look_up(action)
            case act.Pull():
                self._pull(action)
            case act.Offer():
                self._offer(action)
            case act.ReleasePool():
                limit_s = self.scene.pace.release_s
                subject = _blocks_of(action.pool.worker, action.peer)
                self._send(subject, action.release, limit_s)
            case _:
                assert_never(action)

    def _look_up(self, action: act.Lookup) -> None:
        key = (action.request, action.attempt)

        def answered(answer: Answer) -> None:
            if isinstance(answer, BlocksFound) and answer.pages:
                self.feed(on.PoolFound(*key, answer, action.peer))
            else:
                self.feed(on.PoolMissed(*key, "not in the pool"))

        subject = _blocks_of(action.pool.worker, action.peer)
        bus, limit_s = self.scene.bus, self.scene.pace.fetch_s
        bus.request(self, subject, action.lookup, self._headers(), limit_s, answered)

    def _offer(self, action: act.Offer) -> None:
        key = (action.request, action.attempt)

        def answered(answer: Answer) -> None:
            self.feed(on.OfferEnded(*key, answer.kept if isinstance(answer, BlocksKept) else 0))

        subject = subjects.pool(action.pool.worker)
        patience_s = self.scene.pace.offer_share * self.scene.case.shape.lease_s
        bus = self.scene.bus
        bus.request(self, subject, action.offer, self._headers(), patience_s, answered)

    def _pull(self, action: act.Pull) -> None:
        """Read from the pool, then prove it on the engine thread."""
        key = (action.request, action.attempt)
        source, reads = action.source, tuple(page.read for page in action.pages)
        self._addresses[source.owner.worker, source.owner.epoch] = source.owner.plane_address

        def summed(sums: tuple[int, ...]) -> None:
            good = tuple(
                on.PulledPage(page.position, found)
                for page, found in zip(action.pages, sums, strict=True)
                if found == page.checksum
            )
            self.feed(on.PullEnded(*key, good, damaged=len(reads) - len(good)))

        def ended(outcome: ReadOutcome) -> None:
            if outcome.error is None:
                self.engine.sums([read.target for read in reads], summed)
                return
            if outcome.error is not Code.STALE:
                self.membership.peer_lost(source.owner.worker)
            self.feed(on.PullEnded(*key, (), settled=outcome.settled))

        ask = Ask(source.owner.plane_address, source.ticket, reads, self.scene.pace.fetch_s)
        self.scene.plane.read(self, ask, ended)

    def _headers(self) -> Headers:
        return self.membership.headers

    def _publish(self, subject: str, message: Message) -> None:
        self.scene.bus.publish(self, subject, message, self._headers())

    def _send(
        self,
        subject: str,
        message: Message,
        timeout_s: float,
        done: Callable[[Answer], None] = lambda _: None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        until_s = self.now() + timeout_s
        Sending(self, subject, message, self._headers(), done, until_s, wanted).attempt()


def _blocks_of(worker: WorkerId, peer: bool) -> str:
    """Where the owner of blocks answers."""
    return subjects.lookups(worker) if peer else subjects.pool(worker)
