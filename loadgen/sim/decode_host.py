"""A simulated decode worker: the real core behind a shell of a few lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from loadgen.sim.bus import Answer, Respond
from loadgen.sim.flight import ReadOutcome
from loadgen.sim.judge import Committed, Violation
from loadgen.sim.plane import Ask
from loadgen.sim.scene import Scene
from loadgen.sim.worker import Worker
from services.decode.core import actions as do
from services.decode.core import events as on
from services.decode.core import report
from services.decode.core.machine import DecodeMachine
from services.decode.core.rules import DecodeRules
from services.decode.core.sequences import Sequence as Sequenced
from shared.bus.headers import Headers
from shared.ids import Epoch, Generation, PageId, RequestId, WorkerId
from shared.wire import subjects
from shared.wire.blocks import BlocksFound, BlocksKept
from shared.wire.codec import Message
from shared.wire.requests import (
    Acknowledged,
    CancelRequest,
    DecodeJob,
    JobFailed,
    LeasesRenewed,
    PagesReady,
    PrefillFailed,
    ReleaseLease,
    RenewLeases,
    ResendTokens,
    TokenChunk,
)
from shared.wire.workers import WorkerLoad, WorkerLost


class DecodeHost(Worker):
    """One incarnation."""

    role = "decode"

    def __init__(self, scene: Scene, name: str, incarnation: int) -> None:
        super().__init__(scene, name, incarnation, scene.case.shape.decode_pages)
        self.machine: DecodeMachine | None = None
        self._outbox: deque[tuple[WorkerId, TokenChunk | JobFailed]] = deque()
        self._addresses: dict[tuple[WorkerId, Epoch], str] = {}

    def _begin(self, epoch: Epoch) -> None:
        shape, model = self.scene.case.shape, self.scene.works.model
        rules = DecodeRules(
            worker=self.membership.worker,
            epoch=epoch,
            model_digest=model.digest,
            tokenizer_digest=model.tokenizer_digest,
            dtype=model.dtype,
            block_tokens=model.block_tokens,
            context_tokens=model.context_tokens,
            vocab_size=model.vocab_size,
            step_tokens=shape.step_tokens,
            alone_tokens=shape.alone_tokens,
            forecast=shape.forecast,
            costs=self.cost,
            plane_address=self.address,
            layout_digest=model.layout_digest,
            page_bytes=self.memory.page_bytes,
            max_sequences=shape.max_sequences,
            queue_limit=shape.queue_limit,
            reserve_wait_s=shape.reserve_wait_s,
            lease_s=shape.lease_s,
            recompute_tokens=shape.recompute_tokens,
        )
        self.machine = DecodeMachine(rules, self.cache)
        worker, bus = self.membership.worker, self.scene.bus
        bus.subscribe(self, subjects.job("decode", worker), self._on_job)
        bus.subscribe(self, subjects.pages(worker), self._on_pages)
        bus.subscribe(self, subjects.LOST, self._on_lost)
        self.tick(self.scene.pace.tick_s, on.Tick())

    # -- the core --------------------------------------------------------------------------

    def handle(self, event: on.Event, now: float) -> Sequence[do.Action]:
        """Watches from outside who commits what (I5)."""
        core = self._core()
        if not self.scene.watched:
            return core.handle(event, now)
        open_before = [s for s in core.desk.sequences.values() if _uncommitted(s)]
        commits_before = core.counts["commits"]
        actions = core.handle(event, now)
        commits = core.counts["commits"] - commits_before
        if commits:
            self._judge_commits(commits, [s for s in open_before if not _uncommitted(s)])
        return actions

    def check(self) -> None:
        self._core().check()

    def story(self, request: str) -> str:
        return "" if self.machine is None else self.machine.story(RequestId(request))

    @property
    def at_work(self) -> bool:
        machine = self.machine
        return machine is not None and not (machine.idle and not machine.offering.open)

    def leftovers(self) -> list[str]:
        if self.machine is None:
            return ["never joined"]
        found, counts = report.accounting(self.machine), self.cache.counts()
        lost = self.machine.counts["pages_unsettled"]
        held = counts.total - counts.free - counts.cached - counts.quarantined
        what = {name: found[name] for name in ("leases", "requests", "open_reads") if found[name]}
        left = [f"{name}: {count}" for name, count in what.items()]
        if held or counts.quarantined != lost:
            left.append(f"held pages: {held}, {lost} were given up: {counts}")
        return left if self.machine.idle else [*left, "not idle"]

    def tally(self) -> dict[str, int]:
        if self.machine is None:
            return {}
        counts = self.machine.counts
        return {
            "preemption": counts["preemptions"],
            "eviction": self.evicted,
            "stale_refused": counts["fenced_attempt"],
        }

    def load(self) -> WorkerLoad:
        machine = self.machine
        return super().load() if machine is None else report.load(machine, self.cost)

    def open_read(self, ticket: str, pages: Sequence[tuple[PageId, Generation]]) -> int | None:
        """The pool reads what was offered to it."""
        return None if self.machine is None else self.cache.open_read(ticket, pages, self.now())

    def close_read(self, read: int) -> None:
        self.feed(on.ReadEnded(read))

    def reconnected(self) -> None:
        super().reconnected()
        self._flush()

    def _core(self) -> DecodeMachine:
        if self.machine is None:
            raise AssertionError("an event before the epoch")
        return self.machine

    def _judge_commits(self, counted: int, sequences: list[Sequenced]) -> None:
        by = Committed(self.name, self.incarnation)
        if counted != len(sequences):
            names = [str(sequence.key) for sequence in sequences]
            raise Violation("I5", f"{self.address}: {counted} commits, but newly open: {names}")
        for sequence in sequences:
            key = (sequence.job.request, sequence.job.attempt)
            life = "\n".join(sequence.life)
            self.scene.judge.committed(key, by, lambda life=life: life)  # type: ignore[misc]

    # -- what comes in ---------------------------------------------------------------------

    def _on_job(self, message: Message, headers: Headers, respond: Respond) -> None:
        call = self.call(respond)
        match message:
            case DecodeJob():
                epoch = None if headers.epoch is None else Epoch(headers.epoch)
                ticket = f"{self.chance.getrandbits(64):016x}"
                self.feed(on.JobArrived(call, message, epoch, ticket))
            case CancelRequest():
                self.feed(on.CancelArrived(call, message))
            case ResendTokens():
                self.feed(on.ResendArrived(call, message))

    def _on_pages(self, message: Message, _: Headers, respond: Respond) -> None:
        call = self.call(respond)
        match message:
            case PagesReady():
                self.feed(on.PagesArrived(call, message))
            case PrefillFailed():
                self.feed(on.PrefillFailedArrived(call, message))

    def _on_lost(self, message: Message, _: Headers, __: Respond) -> None:
        if not isinstance(message, WorkerLost) or self.membership.declared_lost(message):
            return
        self.feed(on.PeerLost(message.worker, message.role, message.epoch))
        for worker, epoch in list(self._addresses):
            if worker == message.worker and epoch <= message.epoch:
                self.scene.plane.forget(self, self._addresses.pop((worker, epoch)))

    # -- what goes out ---------------------------------------------------------------------

    def perform(self, action: do.Action) -> None:
        match action:
            case do.Reply(call, message):
                self.answer(call, message)
            case do.RunStep() | do.Verify() | do.Checksum():
                self._engine(action)
            case do.EmitTokens() | do.FailJob():
                self._emit(action)
            case do.PublishBlocks(events):
                self.published(events)
            case do.Pull():
                self._pull(action)
            case do.Offer() | do.LookUp() | do.ReleasePool():
                self._with_pool(action)
            case do.RenewLeases():
                self._renew(action)
            case do.Release():
                self._release(action)
            case do.Traced() | do.JobClosed():
                pass
            case _:
                assert_never(action)

    def _engine(self, action: do.RunStep | do.Verify | do.Checksum) -> None:
        match action:
            case do.RunStep(step, items):
                self.engine.step(items, lambda tokens: self.feed(_stepped(step, tokens)))
            case do.Verify(pull, pages):
                self.engine.sums(pages, lambda found: self.feed(on.Verified(pull, found)))
            case do.Checksum(seal, pages):
                self.engine.sums(pages, lambda found: self.feed(on.Checksummed(seal, found)))
            case _:
                assert_never(action)

    def _emit(self, action: do.EmitTokens | do.FailJob) -> None:
        """In order, kept while the connection is away."""
        me, epoch = self.membership.worker, self.membership.epoch
        message: TokenChunk | JobFailed
        if isinstance(action, do.EmitTokens):
            message = TokenChunk(me, epoch, action.entries)
        else:
            code = action.code.value
            message = JobFailed(action.request, action.attempt, me, epoch, code, action.message)
        self._outbox.append((action.gateway, message))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            gateway, message = self._outbox[0]
            if not self.scene.bus.publish(self, subjects.tokens(gateway), message, self._headers()):
                return
            self._outbox.popleft()

    def _pull(self, action: do.Pull) -> None:
        peer = action.peer
        self._addresses[peer.worker, peer.epoch] = peer.plane_address

        def ended(outcome: ReadOutcome) -> None:
            if outcome.error is not None and outcome.error.value != "stale":
                self.membership.peer_lost(peer.worker)
            event = on.PullEnded(action.pull, outcome.error, outcome.settled, outcome.size_bytes)
            self.feed(event)

        ask = Ask(peer.plane_address, action.ticket, action.reads, self.scene.pace.pull_s)
        self.scene.plane.read(self, ask, ended)

    def _renew(self, action: do.RenewLeases) -> None:
        message = RenewLeases(self.membership.worker, self.membership.epoch, action.leases)

        def answered(answer: Answer) -> None:
            if isinstance(answer, LeasesRenewed):
                self.feed(on.LeasesAnswered(action.peer, action.asked_s, answer.gone))

        self._ask(subjects.leases(action.peer.worker), message, answered)

    def _release(self, action: do.Release) -> None:
        me, epoch = self.membership.worker, self.membership.epoch
        message = ReleaseLease(me, epoch, action.lease, action.reason)

        def answered(answer: Answer) -> None:
            if isinstance(answer, Acknowledged):
                self.feed(on.ReleaseAcknowledged(action.lease))

        self._ask(subjects.leases(action.peer.worker), message, answered)

    def _with_pool(self, action: do.Offer | do.LookUp | do.ReleasePool) -> None:
        subject, pace = subjects.pool(action.pool.worker), self.scene.pace
        match action:
            case do.Offer():
                patience_s = pace.offer_share * self.scene.case.shape.lease_s
                bus = self.scene.bus
                offered = (action.request, action.attempt)

                def taken(answer: Answer) -> None:
                    kept = answer.kept if isinstance(answer, BlocksKept) else 0
                    self.feed(on.OfferEnded(*offered, kept))

                bus.request(self, subject, action.offer, self._headers(), patience_s, taken)
            case do.LookUp():
                key = (action.fetch, action.request, action.attempt)

                def found(answer: Answer) -> None:
                    blocks = answer if isinstance(answer, BlocksFound) else None
                    self.feed(on.PoolAnswered(*key, blocks))

                bus = self.scene.bus
                bus.request(self, subject, action.lookup, self._headers(), pace.fetch_s, found)
            case do.ReleasePool():
                self._ask(subject, action.release, lambda _: None)
            case _:
                assert_never(action)

    def _ask(self, subject: str, message: Message, answered: Callable[[Answer], None]) -> None:
        bus = self.scene.bus
        limit_s = self.scene.pace.answer_s
        bus.request(self, subject, message, self._headers(), limit_s, answered)

    def _headers(self) -> Headers:
        return self.membership.headers


def _uncommitted(sequence: Sequenced) -> bool:
    return sequence.handoff is not None and not sequence.handoff.committed


def _stepped(step: int, tokens: tuple[int | None, ...] | None) -> on.Event:
    if tokens is None:
        return on.StepFailed(step, "the engine failed")
    return on.StepEnded(step, tokens)
