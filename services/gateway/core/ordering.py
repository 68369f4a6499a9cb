"""Each token once, in order (invariant I6): one client stream over any number of attempts.

Owns the list of emitted token ids. Knows nothing of workers, text or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.ids import Attempt

MAX_PENDING: Final = 1_024
"""Entries kept ahead of a gap; beyond it they are dropped and asked for again."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one entry changed: tokens that are next in the stream, and the ending if reached."""

    token_ids: tuple[int, ...] = ()
    finish: str | None = None
    dropped: str | None = None
    """Why the entry changed nothing: 'stale', 'duplicate', 'ended', 'malformed', 'overflow'."""


class TokenOrder:
    """Orders the entries of the current attempt by index and cuts what was already emitted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._emitted: list[int] = []
        self._pending: dict[int, tuple[tuple[int, ...], str | None]] = {}
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
        self, attempt: Attempt, index: int, token_ids: tuple[int, ...], finish: str | None
    ) -> Taken:
        """Apply one entry. Late, repeated and early entries are safe in any mix."""
        refusal = self._refusal(attempt, index, token_ids, finish)
        if refusal is not None:
            return Taken(dropped=refusal)
        if index > self.next_index:
            return self._keep(index, token_ids, finish)
        fresh = self._apply(index, token_ids, finish)
        while self._finish is None and (ready := self._next_pending()) is not None:
            fresh += self._apply(*ready)
        if self._finish is not None:
            self._pending.clear()
        if not fresh and self._finish is None:
            return Taken(dropped="duplicate" if token_ids else None)
        return Taken(fresh, self._finish)

    def _refusal(
        self, attempt: Attempt, index: int, token_ids: tuple[int, ...], finish: str | None
    ) -> str | None:
        if self._finish is not None:
            return "ended"
        if attempt != self._attempt:
            return "stale"
        if index < 0 or finish not in (None, "stop", "length"):
            return "malformed"
        if index + len(token_ids) > self._limit:
            return "malformed"
        return None

    def _keep(self, index: int, token_ids: tuple[int, ...], finish: str | None) -> Taken:
        if not token_ids and finish is None:
            return Taken()
        if len(self._pending) >= MAX_PENDING and index not in self._pending:
            return Taken(dropped="overflow")
        held = self._pending.get(index)
        if held is not None and len(held[0]) >= len(token_ids) and finish in (None, held[1]):
            return Taken(dropped="duplicate")
        self._pending[index] = (token_ids, finish)
        return Taken()

    def _apply(self, index: int, token_ids: tuple[int, ...], finish: str | None) -> tuple[int, ...]:
        """Append the unseen tail of an entry that touches the end of the stream."""
        end = index + len(token_ids)
        fresh = token_ids[self.next_index - index :] if end > self.next_index else ()
        self._emitted.extend(fresh)
        if finish is not None and end == self.next_index:
            self._finish = finish
        elif self.next_index == self._limit:
            self._finish = "length"
        return fresh

    def _next_pending(self) -> tuple[int, tuple[int, ...], str | None] | None:
        for index in sorted(self._pending):
            if index > self.next_index:
                return None
            token_ids, finish = self._pending.pop(index)
            return index, token_ids, finish
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
