"""What is remembered of attempts that are over: that they ended, and the tokens they made.

Bounded by count and by time; forgetting is safe, a late message then meets "unknown".
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from services.decode.core.rules import DecodeRules
from services.decode.core.sequences import Sequence
from shared.ids import Attempt, RequestId
from shared.wire.requests import LeaseKey, TokenEntry


@dataclass(frozen=True, slots=True)
class _Ended:
    attempt: Attempt
    at_s: float
    life: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Log:
    entry: TokenEntry
    at_s: float


class Ledger:
    """Ended attempts and finished token logs."""

    def __init__(self, rules: DecodeRules) -> None:
        self._rules = rules
        self._ended: OrderedDict[RequestId, _Ended] = OrderedDict()
        self._logs: OrderedDict[LeaseKey, _Log] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    @property
    def logs(self) -> int:
        return len(self._logs)

    def has_ended(self, request: RequestId, attempt: Attempt) -> bool:
        """Whether this attempt, or a newer one, is over."""
        ended = self._ended.get(request)
        return ended is not None and ended.attempt >= attempt

    def end(
        self, request: RequestId, attempt: Attempt, now: float, life: tuple[str, ...] = ()
    ) -> None:
        """Remember that this attempt and all older ones are over."""
        if self.has_ended(request, attempt):
            return
        self._ended[request] = _Ended(attempt, now, life)
        self._ended.move_to_end(request)
        while len(self._ended) > self._rules.ended_limit:
            self._ended.popitem(last=False)

    def keep_log(self, sequence: Sequence, finish: str, now: float) -> None:
        """Keep the tokens of a finished attempt for late questions."""
        self._logs[sequence.key] = _Log(sequence.entry(sequence.job.first_index, finish), now)
        while len(self._logs) > self._rules.log_limit:
            self._logs.popitem(last=False)

    def has_finished(self, key: LeaseKey) -> bool:
        return key in self._logs

    def tokens_from(self, key: LeaseKey, index: int) -> TokenEntry | None:
        """The finished attempt's tokens from `index` on, with its finish."""
        log = self._logs.get(key)
        if log is None:
            return None
        whole = log.entry
        index = min(max(index, whole.index), whole.index + len(whole.token_ids))
        return TokenEntry(
            request=whole.request,
            attempt=whole.attempt,
            index=index,
            token_ids=whole.token_ids[index - whole.index :],
            finish=whole.finish,
            cached_tokens=whole.cached_tokens if index == whole.index else None,
        )

    def story(self, request: RequestId) -> tuple[str, ...]:
        ended = self._ended.get(request)
        return () if ended is None else ended.life

    def sweep(self, now: float) -> None:
        """Forget what is too old; both tables are in order of time."""
        while self._logs and next(iter(self._logs.values())).at_s + self._rules.log_s <= now:
            self._logs.popitem(last=False)
        while self._ended and next(iter(self._ended.values())).at_s + self._rules.ended_s <= now:
            self._ended.popitem(last=False)
