"""What an engine is asked to do in one step, and what it answers. Values only.

A step is mixed: each item extends one sequence by `tokens` starting at `start`; a decode item
has one token, a prefill item a chunk. Both read and write pages through the page table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.dataplane.plane import PageMemory
from shared.ids import PageId


@dataclass(frozen=True, slots=True)
class Draw:
    """Sample the token that follows the item's last position."""

    temperature: float
    top_p: float
    seed: int
    position: int
    """Index of the drawn token in the client's stream: (seed, position) fixes the randomness."""


@dataclass(frozen=True, slots=True)
class StepItem:
    """One sequence's share of a step."""

    tokens: tuple[int, ...]
    start: int
    """Token position of tokens[0]; positions below it are already in the pages."""
    page_table: tuple[PageId, ...]
    """Pages of positions 0.. in order, enough for start + len(tokens)."""
    draw: Draw | None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Per item the drawn token, or None where nothing was to be drawn."""

    tokens: tuple[int | None, ...]
    seconds: float


class Engine(Protocol):
    """A model with its page memory. All methods block and run on the one engine thread."""

    @property
    def memory(self) -> PageMemory: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...

    @property
    def model_digest(self) -> str: ...

    @property
    def layout_digest(self) -> str: ...

    def step(self, items: Sequence[StepItem]) -> StepResult:
        """Run one step. Raises EngineError; then no item advanced."""
        ...

    def checksums(self, pages: Sequence[PageId]) -> tuple[int, ...]:
        """xxh3-64 of each whole page, as stored."""
        ...
