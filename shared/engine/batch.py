"""What an engine is asked to do in one step, and what it answers. Values only.

A step is mixed: each item extends one sequence by `tokens` starting at `start`; a decode item
has one token, a prefill item a chunk. Both read and write pages through the page table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from shared.dataplane.plane import PageMemory
from shared.errors import EngineLost
from shared.ids import PageId
from shared.wire.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Penalties:
    """Makes seen tokens less likely. Everything it counts is in `history`, so a sequence that is
    computed again elsewhere is judged alike."""

    repetition: float
    """Divides positive and multiplies negative logits of tokens of prompt and output."""
    presence: float
    frequency: float
    """Both are taken off the logits of tokens of the output, `frequency` once each time."""
    history: bytes = field(repr=False)
    """Token ids of prompt and output so far, 4 bytes each, little-endian."""
    prompt_tokens: int
    """So many of them are the client's prompt; the rest is output, of whatever attempt."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Sample the token that follows the item's last position. The defaults change nothing.

    In this order: bias and bans, penalties, temperature, min_p, top_k, top_p."""

    temperature: float
    """0 is greedy."""
    top_p: float
    seed: int
    position: int
    """Index of the drawn token in the client's stream: (seed, position) fixes the randomness."""
    top_k: int = 0
    min_p: float = 0.0
    bias_ids: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()
    banned: tuple[int, ...] = ()
    """Tokens that cannot be drawn here."""
    penalties: Penalties | None = None
    logprobs: int | None = None
    """Also tell the log-probability of the token and of so many likeliest ones."""

    @property
    def plain(self) -> bool:
        """The logits are taken as they are."""
        return self.penalties is None and not self.bias_ids and not self.banned


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
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    """Per item what was asked for. Empty when no item asked."""


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

    def checksums(self, pages: Sequence[PageId], parts: int | None = None) -> tuple[int, ...]:
        """Of each whole page, as stored: xxh3-64, or its sum over the pieces that `parts` tensor
        parallel ranks hold; None: as many as this engine has. Raises EngineError."""
        ...


@runtime_checkable
class Spread(Protocol):
    """What an engine of several processes has besides."""

    def on_lost(self, tell: Callable[[EngineLost], None]) -> None:
        """`tell` is called once, from any thread, when the engine can run no more."""
        ...

    def close(self) -> None:
        """End the other processes."""
        ...
