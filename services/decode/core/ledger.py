"""What is remembered of attempts that are over: that they ended, and the tokens they made.

Bounded by count and by time; forgetting is safe, a late message then meets "unknown".
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from services.decode.core.rules import DecodeRules
from services.decode.core.sequences import Sequence
from shared.ids import Attempt, RequestId
from shared.wire.requests import LeaseKey, TokenEntry

TOLD_TOKENS: Final = 256
"""Tokens with their logprobs in one answer: below half a megabyte."""


@dataclass(frozen=True, slots=True)
class _Ended:
    attempt: Attempt
    at_s: float
    life: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Log:
    entry: TokenEntry
    at_s: float


def part_of(entry: TokenEntry, index: int) -> TokenEntry:
    """The entry's tokens from `index` on. Where each brings its logprobs, so many that an answer
    fits the bus: whoever misses more asks again, and only the last part tells the finish."""
    end = entry.index + len(entry.token_ids)
    index = min(max(index, entry.index), end)
    stop = min(end, index + TOLD_TOKENS) if entry.logprobs else end
    part = slice(index - entry.index, stop - entry.index)
    return TokenEntry(
        request=entry.request,
        attempt=entry.attempt,
        index=index,
        token_ids=entry.token_ids[part],
        finish=entry.finish if stop == end else None,
        cached_tokens=entry.cached_tokens if index == entry.index else None,
        logprobs=entry.logprobs[part],
    )


class Ledger:
    """Ended attempts and finished token logs."""

    def __init__(self, rules: DecodeRules) -> None:
        self._rules = rules
        self._ended: OrderedDict[RequestId, _Ended] = OrderedDict()
        self._logs: OrderedDict[LeaseKey, _Log] = OrderedDict()
        self._told = 0
        """Tokens with logprobs in all logs."""

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
        entry = sequence.entry(sequence.job.first_index, finish)
        self._logs[sequence.key] = _Log(entry, now)
        self._told += len(entry.logprobs)
        while len(self._logs) > self._rules.log_limit or self._told > self._rules.log_told_tokens:
            self._drop_oldest_log()

    def has_finished(self, key: LeaseKey) -> bool:
        return key in self._logs

    def tokens_from(self, key: LeaseKey, index: int) -> TokenEntry | None:
        """The finished attempt's tokens from `index` on, with its finish."""
        log = self._logs.get(key)
        return None if log is None else part_of(log.entry, index)

    def story(self, request: RequestId) -> tuple[str, ...]:
        ended = self._ended.get(request)
        return () if ended is None else ended.life

    def sweep(self, now: float) -> None:
        """Forget what is too old; both tables are in order of time."""
        while self._logs and next(iter(self._logs.values())).at_s + self._rules.log_s <= now:
            self._drop_oldest_log()
        while self._ended and next(iter(self._ended.values())).at_s + self._rules.ended_s <= now:
            self._ended.popitem(last=False)

    def _drop_oldest_log(self) -> None:
        _, log = self._logs.popitem(last=False)
        self._told -= len(log.entry.logprobs)
