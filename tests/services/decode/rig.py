"""A decode machine joined to lists: a test says when each step, pull and message happens.

`send` feeds one event and runs `check()`. Work the machine asked for waits in `work`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from services.decode.core import actions as do
from services.decode.core import events as on
from services.decode.core.machine import DecodeMachine
from services.decode.core.rules import DecodeRules
from shared.engine.batch import Engine
from shared.errors import Code
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.kv.cache import PageCache
from shared.wire.codec import Message
from shared.wire.requests import (
    CancelRequest,
    DecodeJob,
    PagesReady,
    PrefillFailed,
    Refused,
    ResendTokens,
    Sampling,
    TokenEntry,
    WorkerRef,
)
from shared.wire.sampling import TokenLogprobs

from .pool_side import POOL, PoolSide
from .prefill_side import BLOCK, ME, PrefillSide, build, undisturbed

GATEWAY = WorkerId("gateway-0")
DECODE = WorkerId("decode-0")


def rules(**changes: object) -> DecodeRules:
    fields: dict[str, object] = {
        "worker": DECODE,
        "epoch": Epoch(7),
        "model_digest": "model",
        "tokenizer_digest": "tokenizer",
        "dtype": "float32",
        "block_tokens": BLOCK,
        "context_tokens": 8192,
        "vocab_size": 512,
        "step_tokens": 16,
        "max_sequences": 16,
        "queue_limit": 8,
        "plane_address": "plane-decode",
        "layout_digest": "layout",
    }
    return DecodeRules(**{**fields, **changes})  # type: ignore[arg-type]


def job(
    request: str = "r1",
    tokens: int | list[int] = 21,
    *,
    attempt: int = 1,
    max_tokens: int = 9,
    prefill: WorkerRef | None = ME,
    first_index: int = 0,
    stop: tuple[int, ...] = (),
    temperature: float = 0.0,
    **rest: Any,
) -> DecodeJob:
    """A job; `rest` are further fields of it."""
    prompt = [7 * at % 251 for at in range(tokens)] if isinstance(tokens, int) else tokens
    whole = DecodeJob(
        request=RequestId(request),
        attempt=Attempt(attempt),
        placement_sequence=1,
        gateway=GATEWAY,
        tokens=tuple(prompt),
        first_index=first_index,
        sampling=Sampling(temperature, 1.0, 5, max_tokens, stop),
        namespace="tenant",
        prefill=prefill,
        deadline_s=600.0,
    )
    return replace(whole, **rest)


@dataclass
class GatewayLog:
    """What the gateway has seen of one request."""

    tokens: dict[int, int] = field(default_factory=dict)
    finish: str | None = None
    failed: Code | None = None
    cached_tokens: int | None = None
    told: dict[int, TokenLogprobs] = field(default_factory=dict)

    def take(self, entry: TokenEntry) -> None:
        for at, token in enumerate(entry.token_ids, entry.index):
            assert self.tokens.setdefault(at, token) == token, f"index {at} changed"
        if entry.logprobs:
            assert len(entry.logprobs) == len(entry.token_ids)
            self.told.update(zip(range(entry.index, 10**6), entry.logprobs, strict=False))
        self.finish = entry.finish or self.finish
        if entry.cached_tokens is not None:
            self.cached_tokens = entry.cached_tokens

    def text(self, first: int = 0) -> list[int]:
        assert sorted(self.tokens) == list(range(first, first + len(self.tokens)))
        return [self.tokens[at] for at in sorted(self.tokens)]


@dataclass
class Rig:
    pages: int = 64
    limits: DecodeRules = field(default_factory=rules)
    prefill: PrefillSide = field(default_factory=PrefillSide)
    pool: PoolSide = field(default_factory=PoolSide)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.engine: Engine = build(self.pages)
        self.cache = PageCache(self.pages, BLOCK)
        self.machine = DecodeMachine(self.limits, self.cache)
        self.work: list[do.Action] = []
        """Steps, pulls, checksums that were asked for and have not happened."""
        self.replies: dict[int, Message] = {}
        self.logs: dict[RequestId, GatewayLog] = defaultdict(GatewayLog)
        self.chunks: list[do.EmitTokens] = []
        self.traced: list[do.Traced] = []
        self.closed: list[do.JobClosed] = []
        self.renewals: list[do.RenewLeases] = []
        self.pulled_pages = 0
        self.prefill_alive = True
        self._replies = 0

    # -- messages --------------------------------------------------------------------------

    def submit(self, wanted: DecodeJob) -> Message | None:
        return self.replies.get(self.asked(wanted))

    def asked(self, wanted: DecodeJob) -> int:
        """Submit; the number under which the answer is or will be in `replies`."""
        self._replies += 1
        ticket = f"offer-{wanted.request}-{wanted.attempt}"
        self.send(on.JobArrived(self._replies, wanted, ticket=ticket))
        return self._replies

    def announce(self, *ready: PagesReady) -> list[Message | None]:
        answers = []
        for one in ready:
            self._replies += 1
            self.send(on.PagesArrived(self._replies, one, f"link-{one.chunk}"))
            answers.append(self.replies.get(self._replies))
        return answers

    def cancel(self, request: str = "r1", attempt: int = 1) -> Message | None:
        self._replies += 1
        cancel = CancelRequest(RequestId(request), Attempt(attempt), "client_gone")
        self.send(on.CancelArrived(self._replies, cancel))
        return self.replies.get(self._replies)

    def resend(self, request: str = "r1", attempt: int = 1, index: int = 0) -> Message | None:
        self._replies += 1
        ask = ResendTokens(RequestId(request), Attempt(attempt), index)
        self.send(on.ResendArrived(self._replies, ask))
        return self.replies.get(self._replies)

    def prefill_failed(self, request: str = "r1", attempt: int = 1) -> Message | None:
        self._replies += 1
        failure = PrefillFailed(RequestId(request), Attempt(attempt), Code.INTERNAL.value)
        self.send(on.PrefillFailedArrived(self._replies, failure))
        return self.replies.get(self._replies)

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.send(on.Tick())

    def send(self, event: on.Event) -> None:
        actions = self.machine.handle(event, self.now)
        self.machine.check()
        for action in actions:
            self._perform(action)

    # -- work ------------------------------------------------------------------------------

    def run(self, limit: int = 5_000) -> None:
        """Let everything that was asked for happen, in order."""
        for _ in range(limit):
            if not self.work:
                return
            self.happen(self.work.pop(0))
        raise AssertionError("work never ends")

    def take(self, kind: type[do.Action]) -> do.Action:
        """Remove the first waiting action of a kind."""
        found = next(action for action in self.work if isinstance(action, kind))
        self.work.remove(found)
        return found

    def happen(self, action: do.Action) -> None:
        match action:
            case do.RunStep():
                result = self.engine.step(action.items)
                self.send(on.StepEnded(action.step, result.tokens, result.logprobs))
            case do.Pull():
                self.end_pull(action)
            case do.Verify():
                self.send(on.Verified(action.pull, self.engine.checksums(action.pages)))
            case do.Checksum():
                self.send(on.Checksummed(action.seal, self.engine.checksums(action.pages)))
            case do.Release():
                if self.prefill_alive:
                    self.prefill.leases.pop(action.lease, None)
                    self.prefill.released.append((action.lease, action.reason))
                    self.send(on.ReleaseAcknowledged(action.lease))
            case do.RenewLeases():
                if self.prefill_alive:
                    gone = tuple(k for k in action.leases if k not in self.prefill.leases)
                    self.send(on.LeasesAnswered(action.peer, action.asked_s, gone))
            case do.Offer() | do.LookUp() | do.ReleasePool():
                self._with_pool(action)
            case _:
                raise AssertionError(f"not work: {action}")

    def _with_pool(self, action: do.Offer | do.LookUp | do.ReleasePool) -> None:
        match action:
            case do.Offer():
                kept, read = self.pool.take(action.offer, self.cache, self.engine, self.now)
                if read is not None:
                    self.send(on.ReadEnded(read))
                self.send(on.OfferEnded(action.request, action.attempt, kept))
            case do.LookUp():
                found = self.pool.look_up(action.lookup)
                key = (action.request, action.attempt)
                self.send(on.PoolAnswered(action.fetch, *key, found))
            case do.ReleasePool():
                self.pool.release(action.release)

    def end_pull(self, pull: do.Pull, spoil: Callable[[memoryview], None] | None = None) -> None:
        """The bytes land, perhaps spoilt, and the end is reported."""
        if not (self.pool.alive if pull.peer == POOL else self.prefill_alive):
            self.send(on.PullEnded(pull.pull, Code.WORKER_LOST))
            return
        self.land(pull, spoil)
        size = self.engine.memory.page_bytes * len(pull.reads)
        self.send(on.PullEnded(pull.pull, None, True, size, 1, "memory"))

    def land(self, pull: do.Pull, spoil: Callable[[memoryview], None] | None = None) -> None:
        for read in pull.reads:
            side = self.pool if pull.peer == POOL else self.prefill
            if side is self.prefill:
                assert self.prefill.generations[read.source] == read.generation
            target = memoryview(self.engine.memory.run(read.target, 1)).cast("B")
            target[:] = side.page_bytes(read.source)
            if spoil is not None:
                spoil(target)
        self.pulled_pages += len(pull.reads)

    def handoff(self, wanted: DecodeJob, chunk_tokens: int = 8) -> list[PagesReady]:
        """The whole of steps 2 to 5, undisturbed; the announcements."""
        self.submit(wanted)
        ready = self.prefill.compute(wanted, chunk_tokens)
        self.first_token(wanted, ready)
        for one in ready:
            self.announce(one)
            self.run()
        return ready

    def first_token(self, wanted: DecodeJob, ready: list[PagesReady]) -> None:
        """Prefill tells the gateway."""
        token = ready[-1].first_token
        assert token is not None
        finish = ready[-1].first_finish
        told = ready[-1].first_logprobs
        entry = TokenEntry(
            wanted.request,
            wanted.attempt,
            wanted.first_index,
            (token,),
            finish,
            0,
            () if told is None else (told,),
        )
        self.logs[wanted.request].take(entry)

    # -- judgement -------------------------------------------------------------------------

    def finished(self, wanted: DecodeJob) -> None:
        """The gateway has exactly the undisturbed tokens and their end."""
        tokens, finish = undisturbed(wanted)
        log = self.logs[wanted.request]
        assert log.text(wanted.first_index) == tokens, self.machine.story(wanted.request)
        assert log.finish == finish

    def at_rest(self, unsettled: int = 0) -> None:
        counts = self.cache.counts()
        assert not self.machine.desk.sequences
        assert (counts.referenced, counts.leased, counts.quarantined) == (0, 0, unsettled)
        assert self.machine.idle

    def _perform(self, action: do.Action) -> None:
        match action:
            case do.Reply():
                assert action.reply not in self.replies, "answered twice"
                self.replies[action.reply] = action.message
            case do.EmitTokens():
                self.chunks.append(action)
                for entry in action.entries:
                    self.logs[entry.request].take(entry)
            case do.FailJob():
                self.logs[action.request].failed = action.code
            case do.Traced():
                self.traced.append(action)
            case do.JobClosed():
                self.closed.append(action)
            case do.PublishBlocks():
                pass
            case do.RenewLeases():
                self.renewals.append(action)
                self.work.append(action)
            case do.Offer() | do.LookUp() | do.ReleasePool():
                self.work.append(action)
            case do.Pull() | do.Verify() | do.Checksum() | do.RunStep() | do.Release():
                self.work.append(action)
            case _:
                assert_never(action)


def refused(answer: object) -> str:
    """The code of a refusal, which `answer` must be."""
    assert isinstance(answer, Refused), answer
    return answer.code


def flip(page: memoryview) -> None:
    page[3] ^= 1


def span_names(rig: Rig) -> list[str]:
    return [span.name for span in rig.traced]
