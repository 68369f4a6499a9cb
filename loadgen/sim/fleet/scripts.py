"""Turns the rows of a workload into prompts: tokens that are equal where blocks are equal.

A follow-up's prompt begins with its predecessor's prompt and answer, as a conversation does.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from loadgen.sim.fleet.priced_engine import DRAWN
from loadgen.workloads.request import Workload

_FIRST_OWN: Final = 2
"""Tokens below are no block's."""


class Scripts:
    """Prompts by row, made when they are sent; a context is kept while a follow-up needs it."""

    def __init__(self, workload: Workload) -> None:
        self._rows = workload.requests
        self._block_tokens = workload.block_tokens
        highest = max((max(row.blocks, default=0) for row in self._rows), default=0)
        self._unshared = highest + 1 + _FIRST_OWN
        self._followers = Counter(row.after for row in self._rows if row.after is not None)
        self._contexts: dict[int, tuple[int, ...]] = {}

    def prompt(self, number: int) -> tuple[int, ...]:
        """Token ids of the row's prompt; call once per row, a predecessor's before."""
        row = self._rows[number]
        before = self._before(row.after)
        if len(before) >= row.prompt_tokens:
            before = ()
        tokens = before + self._fill(number, len(before), row.prompt_tokens)
        if self._followers[number]:
            self._contexts[number] = tokens + (DRAWN,) * row.output_tokens
        return tokens

    def _before(self, after: int | None) -> tuple[int, ...]:
        if after is None:
            return ()
        context = self._contexts[after]
        self._followers[after] -= 1
        if not self._followers[after]:
            del self._contexts[after]
        return context

    def _fill(self, number: int, start: int, stop: int) -> tuple[int, ...]:
        """Each block's tokens are its id; a row without blocks has an id of its own."""
        blocks, size = self._rows[number].blocks, self._block_tokens
        if not blocks:
            return (self._unshared + number,) * (stop - start)
        tokens: list[int] = []
        for place in range(start // size, -(-stop // size)):
            tokens += (blocks[place] + _FIRST_OWN,) * size
        skipped = start % size
        return tuple(tokens[skipped : skipped + stop - start])
