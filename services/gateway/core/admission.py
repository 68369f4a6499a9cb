"""How much work the gateway takes on: open requests, and prompt tokens without a first token.

A request beyond a cap is refused before anything is sent, with a time after which room is
likely. Knows nothing of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.errors import Code
from shared.ids import RequestId

_SMOOTHING: Final = 0.2
MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of one gateway."""

    requests: int = 1_024
    waiting_tokens: int = 2_000_000


@dataclass(frozen=True, slots=True)
class Overload:
    """Why a request is not taken, and when to come back."""

    code: Code
    message: str
    retry_after_s: float


class Admission:
    """Counts open requests and waiting prompt tokens; estimates how fast requests end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[RequestId, int] = {}
        self._waiting_tokens = 0
        self._seconds_per_end = MIN_RETRY_S
        self._last_end_s: float | None = None

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def waiting_tokens(self) -> int:
        return self._waiting_tokens

    def admit(self, request: RequestId, prompt_tokens: int, choices: int = 1) -> Overload | None:
        """Take the request in, or say why not. An empty gateway takes any one request. It brings
        so many choices; a further one of them (`choices` 0) was promised its place and its prompt
        waits for nobody."""
        if not choices:
            self._open[request] = 0
            return None
        if self._open and len(self._open) + choices > self._limits.requests:
            return self._overload("too many open requests")
        fits = self._waiting_tokens + prompt_tokens <= self._limits.waiting_tokens
        if self._waiting_tokens and not fits:
            return self._overload("too many prompt tokens are waiting")
        self._open[request] = prompt_tokens
        self._waiting_tokens += prompt_tokens
        return None

    def started(self, request: RequestId) -> None:
        """The first token came: its prompt no longer waits."""
        waiting = self._open.get(request, 0)
        if waiting:
            self._waiting_tokens -= waiting
            self._open[request] = 0

    def ended(self, request: RequestId, now: float) -> None:
        """The request is over, however it ended."""
        self._waiting_tokens -= self._open.pop(request, 0)
        if self._last_end_s is not None:
            gap_s = max(0.0, now - self._last_end_s)
            self._seconds_per_end += _SMOOTHING * (gap_s - self._seconds_per_end)
        self._last_end_s = now

    def _overload(self, message: str) -> Overload:
        return Overload(Code.QUEUE_FULL, message, self.retry_after_s())

    def retry_after_s(self) -> float:
        """Seconds until about a tenth of the open requests should have ended."""
        drain_s = self._seconds_per_end * max(1, len(self._open) // 10)
        return min(MAX_RETRY_S, max(MIN_RETRY_S, drain_s))

    def check(self) -> None:
        """Raise AssertionError unless the counts add up."""
        if self._waiting_tokens != sum(self._open.values()):
            raise AssertionError(
                f"admission: {self._waiting_tokens} waiting tokens, "
                f"open requests hold {sum(self._open.values())}"
            )
