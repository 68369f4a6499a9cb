"""One gateway core on a list: short names for its events, and what it asked for."""

from __future__ import annotations

from typing import TypeVar

from services.gateway.core import actions as act
from services.gateway.core import events as ev
from services.gateway.core.admission import Limits
from services.gateway.core.events import Role
from services.gateway.core.machine import GatewayMachine
from services.gateway.core.request import Policy
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.kv.hashing import CacheIdentity
from shared.wire.requests import (
    Accepted,
    JobFailed,
    Placement,
    Refused,
    Sampling,
    TokenChunk,
    TokenEntry,
    WorkerRef,
)
from shared.wire.workers import WorkerLost

A = TypeVar("A")

IDENTITY = CacheIdentity("public", "m" * 8, "t" * 8, "float32", 16)
SAMPLING = Sampling(0.0, 1.0, 7, 8, (99,))
PREFILL = WorkerRef(WorkerId("prefill-0"), Epoch(1), "plane-p")
DECODE = WorkerRef(WorkerId("decode-0"), Epoch(1), "plane-d")
DECODE_2 = WorkerRef(WorkerId("decode-1"), Epoch(4), "plane-d2")
R = RequestId("r1")


class Core:
    """A machine with a hand-moved clock; every action ever asked for is kept."""

    def __init__(self, policy: Policy | None = None, limits: Limits | None = None) -> None:
        self.now = 100.0
        self.machine = GatewayMachine(
            WorkerId("gateway-0"), policy or Policy(identity=IDENTITY), limits or Limits()
        )
        self.log: list[act.Action] = []
        self.last: list[act.Action] = []

    def feed(self, event: ev.Event) -> list[act.Action]:
        self.last = self.machine.handle(event, self.now)
        self.machine.check()
        self.log += self.last
        return self.last

    def wait(self, seconds: float) -> list[act.Action]:
        self.now += seconds
        return self.feed(ev.Ticked())

    def got(self, kind: type[A]) -> list[A]:
        """Actions of a kind in the last step."""
        return [action for action in self.last if isinstance(action, kind)]

    def all(self, kind: type[A]) -> list[A]:
        return [action for action in self.log if isinstance(action, kind)]

    @property
    def tokens(self) -> list[int]:
        return [token for deliver in self.all(act.Deliver) for token in deliver.token_ids]

    @property
    def finish(self) -> str | None:
        delivered = self.all(act.Deliver)
        return delivered[-1].finish if delivered else None

    # -- events ------------------------------------------------------------------------

    def open(
        self,
        request: RequestId = R,
        prompt: int = 20,
        sampling: Sampling = SAMPLING,
        *,
        no_queue: bool = False,
    ) -> list[act.Action]:
        tokens = tuple(range(prompt))
        return self.feed(ev.Opened(request, tokens, sampling, "auto", self.now + 60, no_queue))

    def placed(
        self,
        attempt: int = 1,
        *,
        prefill: WorkerRef | None = PREFILL,
        decode: WorkerRef = DECODE,
        request: RequestId = R,
        leader_epoch: int = 1,
    ) -> list[act.Action]:
        answer = placement(attempt, prefill, decode, request, leader_epoch)
        return self.feed(ev.Placed(request, Attempt(attempt), answer))

    def accepted(self, role: Role, ref: WorkerRef, attempt: int = 1) -> list[act.Action]:
        answer = Accepted(ref.worker, ref.epoch)
        return self.feed(ev.JobAnswered(R, Attempt(attempt), role, answer))

    def run(self, attempt: int = 1, *, decode: WorkerRef = DECODE) -> None:
        """Placed, reserved and handed to both workers."""
        self.placed(attempt, decode=decode)
        self.accepted(Role.DECODE, decode, attempt)
        self.accepted(Role.PREFILL, PREFILL, attempt)

    def chunk(
        self,
        index: int,
        *tokens: int,
        ref: WorkerRef = DECODE,
        attempt: int = 1,
        finish: str | None = None,
        cached: int | None = None,
    ) -> list[act.Action]:
        entry = TokenEntry(R, Attempt(attempt), index, tokens, finish, cached)
        return self.feed(ev.TokensArrived(TokenChunk(ref.worker, ref.epoch, (entry,))))

    def failed(self, ref: WorkerRef, code: str, attempt: int = 1) -> list[act.Action]:
        failure = JobFailed(R, Attempt(attempt), ref.worker, ref.epoch, code, "")
        return self.feed(ev.AttemptFailed(failure))

    def died(
        self, ref: WorkerRef, role: str, *, cause: str = "silent", leader_epoch: int = 1
    ) -> list[act.Action]:
        lost = WorkerLost(ref.worker, role, ref.epoch, Epoch(leader_epoch), cause)
        return self.feed(ev.WorkerDied(lost))

    def resent(self, role: Role, answer: TokenEntry | Refused, attempt: int = 1) -> None:
        self.feed(ev.ResendAnswered(R, Attempt(attempt), role, answer))

    def unsent(self, role: Role, silence: ev.Silence, attempt: int = 1) -> list[act.Action]:
        return self.feed(ev.ResendUnanswered(R, Attempt(attempt), role, silence))


def placement(
    attempt: int,
    prefill: WorkerRef | None = PREFILL,
    decode: WorkerRef = DECODE,
    request: RequestId = R,
    leader_epoch: int = 1,
) -> Placement:
    return Placement(
        request=request,
        attempt=Attempt(attempt),
        sequence=attempt,
        leader_epoch=Epoch(leader_epoch),
        route="disaggregated" if prefill else "colocated",
        prefill=prefill,
        decode=decode,
        kvpool=None,
        cached_blocks=0,
        estimated_ttft_s=0.01,
        reason="test",
        candidates=(),
    )


def started() -> Core:
    core = Core()
    core.open()
    core.run()
    return core


def places(core: Core) -> list[act.Place]:
    return core.got(act.Place)
