"""Each token once, in order (invariant I6): one client stream over any number of attempts.

Owns the list of emitted token ids. Knows nothing of workers, text or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.ids import Attempt
from shared.wire.sampling import TokenLogprobs

MAX_PENDING: Final = 1_024
"""Entries kept ahead of a gap; beyond it they are dropped and asked for again."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one entry changed: tokens that are next in the stream, and the ending if reached."""

    token_ids: tuple[int, ...] = ()
    finish: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token, where the stream has them."""
    dropped: str | None = None
    """Why the entry changed nothing: 'stale', 'duplicate', 'ended', 'malformed', 'overflow'."""


@dataclass(frozen=True, slots=True)
class _Entry:
    index: int
    token_ids: tuple[int, ...]
    finish: str | None
    logprobs: tuple[TokenLogprobs, ...]


class TokenOrder:
    """Orders the entries of the current attempt by index and cuts what was already emitted."""

    def __init__(self, limit: int, *, told: bool = False) -> None:
        """`told`: every token must bring its log-probabilities."""
        self._limit = limit
        self._told = told
        self._emitted: list[int] = []
        self._pending: dict[int, _Entry] = {}
        self._attempt = Attempt(0)
        self._finish: str | None = None

    @property
    def emitted(self) -> tuple[int, ...]:
        return tuple(self._emitted)

    @property
    def next_index(self) -> int:
        return len(self._emitted)

    @property
    def finish(self) -> str | None:
        return self._finish

    @property
    def has_gap(self) -> bool:
        """A later entry waits for an earlier one."""
        return bool(self._pending)

    def begin(self, attempt: Attempt) -> None:
        """A new attempt goes on after the emitted tokens; whatever an older one still had
        waiting is forgotten."""
        self._attempt = attempt
        self._pending.clear()

    def take(
        self,
        attempt: Attempt,
        index: int,
        token_ids: tuple[int, ...],
        finish: str | None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> Taken:
        """Apply one entry. Late, repeated and early entries are safe in any mix."""
        entry = _Entry(index, token_ids, finish, logprobs if self._told else ())
        refusal = self._refusal(attempt, entry)
        if refusal is not None:
            return Taken(dropped=refusal)
        if index > len(self._emitted):
            return self._keep(entry)
        fresh, told = self._apply(entry)
        if self._pending:
            fresh, told = self._with_pending(fresh, told)
        if not fresh and self._finish is None:
            return Taken(dropped="duplicate" if token_ids else None)
        return Taken(fresh, self._finish, told)

    def _refusal(self, attempt: Attempt, entry: _Entry) -> str | None:
        if self._finish is not None:
            return "ended"
        if attempt != self._attempt:
            return "stale"
        if entry.index < 0 or entry.finish not in (None, "stop", "length"):
            return "malformed"
        count = len(entry.token_ids)
        if self._told and len(entry.logprobs) != count:
            return "malformed"
        return "malformed" if entry.index + count > self._limit else None

    def _keep(self, entry: _Entry) -> Taken:
        index, token_ids, finish = entry.index, entry.token_ids, entry.finish
        if not token_ids and finish is None:
            return Taken()
        if len(self._pending) >= MAX_PENDING and index not in self._pending:
            return Taken(dropped="overflow")
        held = self._pending.get(index)
        longer = held is None or len(held.token_ids) < len(token_ids)
        if held is not None and not longer and finish in (None, held.finish):
            return Taken(dropped="duplicate")
        self._pending[index] = entry
        return Taken()

    def _apply(self, entry: _Entry) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """Append the unseen tail of an entry that touches the end of the stream."""
        end, start = entry.index + len(entry.token_ids), len(self._emitted)
        unseen = slice(start - entry.index, None) if end > start else slice(0)
        fresh = entry.token_ids[unseen]
        self._emitted.extend(fresh)
        stop = start + len(fresh)
        if entry.finish is not None and end == stop:
            self._finish = entry.finish
        elif stop == self._limit:
            self._finish = "length"
        return fresh, entry.logprobs[unseen]

    def _with_pending(
        self, fresh: tuple[int, ...], told: tuple[TokenLogprobs, ...]
    ) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]:
        """What waited for these goes after them."""
        while self._finish is None and (ready := self._next_pending()) is not None:
            more, more_told = self._apply(ready)
            fresh, told = fresh + more, told + more_told
        if self._finish is not None:
            self._pending.clear()
        return fresh, told

    def _next_pending(self) -> _Entry | None:
        for index in sorted(self._pending):
            if index > self.next_index:
                return None
            return self._pending.pop(index)
        return None

    def check(self) -> None:
        """Raise AssertionError unless the stream is consistent with itself."""
        problem = None
        if len(self._emitted) > self._limit:
            problem = "more tokens than allowed"
        elif self._finish is None and any(index <= self.next_index for index in self._pending):
            problem = "a waiting entry is already due"
        elif self._finish is not None and self._pending:
            problem = "entries wait after the end"
        if problem is not None:
            raise AssertionError(f"token order: {problem}")
