"""The clients of a performance run: one request each, and when its tokens came."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.sim.case import Order
from loadgen.sim.clients import FINISHED, Client
from loadgen.sim.oracle import Expected
from loadgen.workloads.request import Request

_NOTHING = Expected((), "")


@dataclass(frozen=True, slots=True)
class Row:
    """One request's life as its client saw it. Times in seconds of the run."""

    number: int
    sent_s: float
    prompt_tokens: int
    output_tokens: int
    first_s: float
    """0 where nothing came."""
    last_s: float
    gap_s: float
    """The longest wait between two tokens."""
    cached_tokens: int
    outcome: str
    tenant: str
    late_gaps: int = 0
    """Tokens that came later after the one before than the run's limit."""
    slow_gap_s: float = 0.0
    """Mean of the longest tenth of the waits between tokens (Mooncake's TBT of a request)."""

    @property
    def ok(self) -> bool:
        return self.outcome == FINISHED

    @property
    def ttft_s(self) -> float:
        """From the intended send to the first token."""
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float:
        """(last - first) / (tokens - 1); 0 for a single token."""
        rest = self.output_tokens - 1
        return (self.last_s - self.first_s) / rest if rest > 0 else 0.0

    @property
    def latency_s(self) -> float:
        return self.last_s - self.sent_s


@dataclass(slots=True, eq=False)
class Caller(Client):
    """Counts tokens instead of comparing them."""

    number: int = 0
    tenant: str = "default"
    ended: Callable[[Caller], None] = field(default=lambda _: None)
    first_s: float = 0.0
    last_s: float = 0.0
    came: int = 0
    gaps_s: list[float] = field(default_factory=list)
    limit_s: float = math.inf
    stride: int = 1
    output_tokens: int = 0
    """What its real answer has."""

    def deliver(self, tokens: tuple[int, ...], finish: str | None, now_s: float) -> None:
        if tokens:
            if not self.came:
                self.first_s = now_s
            else:
                self.gaps_s.append(now_s - self.last_s)
            self.last_s = now_s
            self.came += len(tokens)
        if finish is not None:
            self.end(FINISHED, now_s)

    def end(self, ending: str, now_s: float) -> None:
        # Not `super()`: a dataclass with slots is a new class that zero-argument super misses.
        Client.end(self, ending, now_s)
        self.ended(self)

    def row(self) -> Row:
        return Row(
            number=self.number,
            sent_s=self.order.at_s,
            prompt_tokens=len(self.order.prompt),
            output_tokens=self._answered(),
            first_s=self.first_s,
            last_s=self.last_s,
            gap_s=max(self.gaps_s, default=0.0) / self.stride,
            late_gaps=sum([gap_s > self.limit_s * self.stride for gap_s in self.gaps_s]),
            slow_gap_s=self._slow_gap_s() / self.stride,
            cached_tokens=self.cached_tokens,
            outcome=self.ending or "open",
            tenant=self.tenant,
        )

    def _slow_gap_s(self) -> float:
        longest = sorted(self.gaps_s, reverse=True)[: max(1, len(self.gaps_s) // 10)]
        return sum(longest) / len(longest) if longest else 0.0

    def _answered(self) -> int:
        """Real tokens; the first one stands for itself alone."""
        if self.stride == 1 or not self.came:
            return self.came
        return min(self.output_tokens, 1 + (self.came - 1) * self.stride)


def steps_of(output_tokens: int, stride: int) -> int:
    """Tokens that are simulated for an answer."""
    return 1 - (1 - output_tokens) // stride


def caller(order: Order, number: int, row: Request, ended: Callable[[Caller], None]) -> Caller:
    """A client that is about to send."""
    return Caller(
        order,
        _NOTHING,
        number=number,
        tenant=row.tenant,
        ended=ended,
        output_tokens=row.output_tokens,
    )
