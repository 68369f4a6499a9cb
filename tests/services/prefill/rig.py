"""A prefill machine joined to an engine, a fake decode worker and a fake pool, all in lists.

`send` feeds one event; engine work and messages to peers wait until the test lets them happen.
`check()` runs after every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from services.prefill.core import events as on
from services.prefill.core.actions import (
    Action,
    Answer,
    EmitTokens,
    FailJob,
    Lookup,
    Offer,
    Pull,
    Reply,
    RunStep,
    SendPages,
    SumPages,
)
from services.prefill.core.machine import Machine
from services.prefill.core.state import Limits
from shared.checkpoint.opening import open_checkpoint
from shared.clock import ManualClock
from shared.engine.batch import Draw, Engine, StepItem
from shared.engine.building import build_engine
from shared.errors import EngineError
from shared.ids import Attempt, BlockHash, Epoch, Generation, PageId, RequestId, WorkerId
from shared.kv.cache import PageCache
from shared.kv.hashing import CacheIdentity
from shared.wire.blocks import BlocksFound
from shared.wire.requests import (
    CancelRequest,
    LeaseKey,
    LeasesRenewed,
    PageRef,
    PrefillJob,
    Refused,
    ReleaseLease,
    RenewLeases,
    Sampling,
    TokenEntry,
    WorkerRef,
)
from shared.wire.workers import CostModel

BLOCK = 4
LEASE_S = 30.0
GRACE_S = 5.0
ME = WorkerRef(WorkerId("prefill-0"), Epoch(3), "plane-prefill")
DECODE = WorkerRef(WorkerId("decode-0"), Epoch(7), "plane-decode")
POOL = WorkerRef(WorkerId("kvpool-0"), Epoch(2), "plane-pool")
GATEWAY = WorkerId("gateway-0")
IDENTITY = CacheIdentity("", "model", "tokenizer", "float32", BLOCK)
VOCAB = 512
LONG = tuple(range(100, 143))
"""43 tokens: 10 full blocks and a partial page; three chunks of at most 16 tokens."""

A = TypeVar("A")


CHECKPOINT = open_checkpoint("hashchain")


def engine(pages: int) -> Engine:
    """The weightless engine: a wrong page anywhere shows as a wrong token."""
    return build_engine(CHECKPOINT, "cpu", "float32", pages, BLOCK, "hashchain")


def expected_token(tokens: Sequence[int]) -> int:
    """What an undisturbed, uncached run draws after `tokens`."""
    table = tuple(PageId(index) for index in range(-(-len(tokens) // BLOCK)))
    item = StepItem(tuple(tokens), 0, table, Draw(0.0, 1.0, 1, 0))
    token = engine(len(table)).step((item,)).tokens[0]
    assert token is not None
    return token


def limits(**changes: Any) -> Limits:
    settings: dict[str, Any] = {
        "block_tokens": BLOCK,
        "chunk_tokens": 16,
        "queue_limit": 16,
        "context_tokens": 4096,
        "vocab_size": VOCAB,
        "layout_digest": "layout",
        "lease_s": LEASE_S,
        "grace_s": GRACE_S,
        "cost": CostModel(0.01, 0.001, 0.0, 0.0, 0.0),
    }
    return Limits(**{**settings, **changes})


def job(
    request: str,
    tokens: Sequence[int],
    attempt: int = 1,
    *,
    max_tokens: int = 8,
    stop: tuple[int, ...] = (),
    pool: WorkerRef | None = None,
    peer: WorkerRef | None = None,
    deadline_s: float = 600.0,
    namespace: str = "tenant",
) -> PrefillJob:
    return PrefillJob(
        request=RequestId(request),
        attempt=Attempt(attempt),
        placement_sequence=1,
        gateway=GATEWAY,
        tokens=tuple(tokens),
        first_index=0,
        sampling=Sampling(0.0, 1.0, 1, max_tokens, stop),
        namespace=namespace,
        decode=DECODE,
        kvpool=pool,
        deadline_s=deadline_s,
        fetch_from=peer,
        fetch_until=len(tokens) // BLOCK if peer else 0,
    )


@dataclass
class Rig:
    """One worker under test."""

    pages: int = 64
    limits: Limits = field(default_factory=limits)

    def __post_init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.cache = PageCache(self.pages, BLOCK)
        self.machine = Machine(ME, self.limits, IDENTITY, self.cache)
        self.engine = engine(self.pages)
        self.poison: int | None = None
        """A token id that makes the engine fail."""
        self.largest_step = 0
        self.log: list[Action] = []
        self.engine_work: list[RunStep | SumPages] = []
        self.unanswered: list[SendPages] = []
        self.lookups: list[Lookup] = []
        self.pulls: list[Pull] = []
        self.offers: list[Offer] = []
        self.pool: dict[BlockHash, tuple[int, bytes]] = {}
        self._calls = 0

    # -- events ------------------------------------------------------------------------------

    def send(self, event: on.Event) -> list[Action]:
        actions = self.machine.handle(event, self.clock.now())
        self.machine.check()
        self.log.extend(actions)
        for action in actions:
            match action:
                case RunStep() | SumPages():
                    self.engine_work.append(action)
                case SendPages():
                    self.unanswered.append(action)
                case Lookup():
                    self.lookups.append(action)
                case Pull():
                    self.pulls.append(action)
                case Offer():
                    self.offers.append(action)
                case _:
                    pass
        assert len(self.engine_work) <= 1
        return actions

    def ask(self, make: Any) -> Answer:
        """Send an event that carries a call; its reply."""
        self._calls += 1
        call = self._calls
        replies = [a for a in self.send(make(call)) if isinstance(a, Reply) and a.call == call]
        assert len(replies) == 1
        return replies[0].message

    def start(self, order: PrefillJob) -> Answer:
        tickets = (f"t{self._calls}", f"o{self._calls}")
        return self.ask(lambda call: on.JobArrived(call, order, *tickets))

    def cancel(self, request: str, attempt: int = 1) -> Answer:
        wish = CancelRequest(RequestId(request), Attempt(attempt), "client_gone")
        return self.ask(lambda call: on.CancelArrived(call, wish))

    def renew(self, *requests: str, attempt: int = 1, reader: WorkerRef = DECODE) -> Answer:
        keys = tuple(LeaseKey(RequestId(r), Attempt(attempt)) for r in requests)
        wish = RenewLeases(reader.worker, reader.epoch, keys)
        return self.ask(lambda call: on.RenewArrived(call, wish))

    def release(self, request: str, attempt: int = 1, reader: WorkerRef = DECODE) -> Answer:
        key = LeaseKey(RequestId(request), Attempt(attempt))
        wish = ReleaseLease(reader.worker, reader.epoch, key, "committed")
        return self.ask(lambda call: on.ReleaseArrived(call, wish))

    def tick(self, seconds: float = 0.0) -> list[Action]:
        self.clock.advance(seconds)
        return self.send(on.Tick())

    # -- the world answers -------------------------------------------------------------------

    def turn_engine(self) -> None:
        """Do the engine work that is waiting."""
        work = self.engine_work.pop()
        if isinstance(work, RunStep):
            self.largest_step = max(self.largest_step, sum(len(i.tokens) for i in work.items))
        self.clock.advance(0.01)
        if isinstance(work, SumPages):
            self.send(on.PagesSummed(work.step, self.engine.checksums(work.pages)))
            return
        try:
            if any(self.poison in item.tokens for item in work.items):
                raise EngineError("poison")
            result = self.engine.step(work.items)
        except EngineError as error:
            self.send(on.StepFailed(work.step, error.message))
        else:
            ended = on.StepEnded(work.step, result.tokens, result.seconds, result.logprobs)
            self.send(ended)

    def acknowledge(self) -> None:
        ready = self.unanswered.pop(0).ready
        self.send(on.PagesAcknowledged(ready.request, ready.attempt, ready.chunk))

    def refuse(self, code: str = "stale") -> None:
        ready = self.unanswered.pop(0).ready
        self.send(on.PagesRefused(ready.request, ready.attempt, ready.chunk, code))

    def look_up(self) -> None:
        asked = self.lookups.pop(0)
        pages: list[PageRef] = []
        for at, block in enumerate(asked.lookup.blocks):
            if block not in self.pool:
                break
            position = asked.lookup.first_position + at
            checksum = self.pool[block][0]
            pages.append(PageRef(position, PageId(at), Generation(1), BLOCK, checksum, block))
        if pages:
            found = BlocksFound(POOL, "pool-ticket", LEASE_S, tuple(pages))
            self.send(on.PoolFound(asked.request, asked.attempt, found, asked.peer))
        else:
            self.send(on.PoolMissed(asked.request, asked.attempt, "miss"))

    def pull(self, damage: bool = False) -> None:
        wish = self.pulls.pop(0)
        good: list[on.PulledPage] = []
        for page, ref in zip(wish.pages, wish.source.pages, strict=False):
            assert ref.block is not None
            content = self.pool[ref.block][1]
            if damage:
                content = bytes([content[0] ^ 1]) + content[1:]
            self.write(page.read.target, content)
            checksum = self.engine.checksums((page.read.target,))[0]
            if checksum == page.checksum:
                good.append(on.PulledPage(page.position, checksum))
        damaged = len(wish.pages) - len(good)
        self.send(on.PullEnded(wish.request, wish.attempt, tuple(good), damaged))

    def take_offer(self) -> None:
        """The pool pulls everything that is offered, through the guard."""
        wish = self.offers.pop(0)
        pairs = [(ref.page, ref.generation) for ref in wish.offer.pages]
        read = self.machine.open_read(wish.offer.ticket, pairs, self.clock.now())
        if read is not None:
            for ref in wish.offer.pages:
                assert ref.block is not None
                self.pool[ref.block] = (ref.checksum, self.read(ref.page))
            self.send(on.ReadEnded(read))
        kept = len(pairs) if read is not None else 0
        self.send(on.OfferEnded(wish.request, wish.attempt, kept))

    def settle(self) -> None:
        """Let everything happen until nothing is left to do."""
        while self.engine_work or self.unanswered or self.lookups or self.pulls or self.offers:
            if self.lookups:
                self.look_up()
            elif self.pulls:
                self.pull()
            elif self.engine_work:
                self.turn_engine()
            elif self.unanswered:
                self.acknowledge()
            else:
                self.take_offer()

    def read(self, page: PageId) -> bytes:
        return bytes(memoryview(self.engine.memory.run(page, 1)))

    def write(self, page: PageId, content: bytes) -> None:
        memoryview(self.engine.memory.run(page, 1))[:] = content

    # -- views -------------------------------------------------------------------------------

    def seen(self, kind: type[A]) -> list[A]:
        return [action for action in self.log if isinstance(action, kind)]

    def emitted(self) -> list[TokenEntry]:
        """First tokens in order; each attempt has at most one."""
        entries = [e for action in self.seen(EmitTokens) for e in action.chunk.entries]
        keys = [(entry.request, entry.attempt) for entry in entries]
        assert len(keys) == len(set(keys))
        return entries

    def first_tokens(self) -> dict[RequestId, TokenEntry]:
        return {entry.request: entry for entry in self.emitted()}

    def failures(self) -> dict[RequestId, str]:
        return {action.failed.request: action.failed.code for action in self.seen(FailJob)}

    def announced(self, request: str) -> list[PageRef]:
        """All pages that were announced for a request, by position."""
        refs = [
            ref
            for action in self.seen(SendPages)
            if action.ready.request == request
            for ref in action.ready.pages
        ]
        return sorted(refs, key=lambda ref: ref.position)

    @property
    def held(self) -> int:
        held = self.machine.accounting()["held_pages"]
        assert isinstance(held, int)
        return held


def code_of(answer: object) -> str:
    assert isinstance(answer, Refused)
    return answer.code


def gone(answer: object) -> tuple[LeaseKey, ...]:
    assert isinstance(answer, LeasesRenewed)
    return answer.gone
