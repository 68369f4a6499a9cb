"""The clients: each has one request, knows what it must hear, and hears exactly one ending."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from loadgen.sim.case import Order
from loadgen.sim.judge import Violation
from loadgen.sim.oracle import Expected
from shared.errors import Code

FINISHED: Final = "finished"
LEFT: Final = "left"
RESET: Final = "reset"
_ERRORS: Final = (
    Code.CONTROL_PLANE_DOWN,
    Code.DEADLINE_EXCEEDED,
    Code.DEADLINE_UNATTAINABLE,
    Code.KV_PAGES_EXHAUSTED,
    Code.QUEUE_FULL,
    Code.NO_WORKER,
    Code.LOADING,
    Code.WORKER_LOST,
    Code.TRANSFER_FAILED,
    Code.ATTEMPTS_EXHAUSTED,
)
ALLOWED: Final = frozenset(
    (
        FINISHED,
        LEFT,
        "stopped",
        "reset",
        "unreachable",
        *(f"error: {code.value}" for code in _ERRORS),
    )
)
"""How a request may end under any faults. Never 'stale', 'integrity_failed' and the like: those
would blame the client or us for the weather."""

BROKEN: Final = f"error: {Code.INTERNAL.value}"
"""Of a request whose engine steps failed."""
POISON: Final = f"error: {Code.POISON_REQUEST.value}"
"""Of a request that two workers died with, whatever killed them."""


@dataclass(slots=True, eq=False)
class Client:
    """The stream as its reader sees it (I6), and its ending (I7)."""

    order: Order
    expected: Expected
    tokens: list[int] = field(default_factory=list)
    opened_s: float | None = None
    ending: str | None = None
    """'finished', 'stopped', 'left', 'reset', 'unreachable', or 'error: <code>'."""
    ended_s: float = 0.0
    cached_tokens: int = 0
    """Of its prompt, as its last attempt told."""

    @property
    def lasted_s(self) -> float:
        """From its arrival to its ending."""
        return 0.0 if self.opened_s is None else self.ended_s - self.opened_s

    @property
    def over_s(self) -> float:
        """From when on nothing of it is needed: when its gateway died, nobody may have been told,
        and only its deadline ends the work."""
        if self.ending != RESET or self.opened_s is None:
            return self.ended_s
        return self.opened_s + self.order.deadline_s

    def deliver(self, tokens: tuple[int, ...], finish: str | None, now_s: float) -> None:
        """The next tokens arrive."""
        request = self.order.request
        if self.ending is not None:
            raise Violation("I7", f"{tokens} after the end ({self.ending})", request)
        start = len(self.tokens)
        wanted = self.expected.tokens[start : start + len(tokens)]
        if tuple(tokens) != wanted:
            text = f"from index {start} came {tokens}, not {wanted}"
            raise Violation("I6", text, request)
        self.tokens.extend(tokens)
        if finish is None:
            return
        whole = len(self.tokens) == len(self.expected.tokens)
        if not whole or finish != self.expected.finish:
            text = f"ends with {finish} after {len(self.tokens)} tokens, not {self.expected}"
            raise Violation("I6", text, request)
        self.end(FINISHED, now_s)

    def end(self, ending: str, now_s: float) -> None:
        """The one terminal state."""
        if self.ending is not None:
            text = f"{ending} after it had ended: {self.ending}"
            raise Violation("I7", text, self.order.request)
        self.ending = ending
        self.ended_s = now_s
