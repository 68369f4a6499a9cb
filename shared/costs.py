"""How long engine work and transfers take, as pure functions of measured coefficients.

The one cost model of the scheduler, both batchers and the simulator. Knows no wire messages: any
object with the right numbers will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Costs(Protocol):
    """Coefficients of one worker, in seconds (shared.wire.workers.CostModel has them)."""

    @property
    def step_s(self) -> float:
        """Fixed part of a step that prefills."""
        ...

    @property
    def token_s(self) -> float:
        """Each token that is computed."""
        ...

    @property
    def pair_s(self) -> float:
        """Each pair of a computed token and a token it attends to, in units of N^2."""
        ...

    @property
    def decode_step_s(self) -> float:
        """A decode step of one sequence."""
        ...

    @property
    def decode_sequence_s(self) -> float:
        """Each further sequence in a decode step."""
        ...


@dataclass(frozen=True, slots=True)
class WorkCosts:
    """A set of coefficients of our own, for fits and tests."""

    step_s: float
    token_s: float
    pair_s: float
    decode_step_s: float
    decode_sequence_s: float


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """One directed link of the data plane."""

    setup_s: float
    bytes_per_s: float


def prefill_s(costs: Costs, new_tokens: int, cached_tokens: int) -> float:
    """One step that computes `new_tokens` after `cached_tokens`: a + b*n + c*((n+p)^2 - p^2)."""
    if new_tokens <= 0:
        return 0.0
    return costs.step_s + _tokens_s(costs, new_tokens, cached_tokens)


def chunked_prefill_s(
    costs: Costs, new_tokens: int, cached_tokens: int, chunk_tokens: int
) -> float:
    """The same work in chunks: the quadratic part telescopes, each chunk adds one fixed part."""
    if new_tokens <= 0:
        return 0.0
    chunks = -(-new_tokens // chunk_tokens)
    return chunks * costs.step_s + _tokens_s(costs, new_tokens, cached_tokens)


def filled_s(
    costs: Costs, new_tokens: int, cached_tokens: int, chunk_tokens: int, sequences: int
) -> float:
    """The same beside `sequences` that get a token with each chunk: no chunk is faster than their
    decode step. Their contexts are left out."""
    if new_tokens <= 0:
        return 0.0
    chunks = -(-new_tokens // chunk_tokens)
    compute_s = chunked_prefill_s(costs, new_tokens, cached_tokens, chunk_tokens)
    return max(compute_s + chunks * sequences * costs.token_s, chunks * decode_s(costs, sequences))


def decode_s(
    costs: Costs, sequences: int, context_tokens: int = 0, context_token_s: float = 0.0
) -> float:
    """One decode step of `sequences` that attend to `context_tokens` together."""
    if sequences <= 0:
        return 0.0
    further_s = costs.decode_sequence_s * (sequences - 1)
    return costs.decode_step_s + further_s + context_token_s * context_tokens


def mixed_s(
    costs: Costs,
    new_tokens: int,
    cached_tokens: int,
    sequences: int,
    context_tokens: int = 0,
    context_token_s: float = 0.0,
) -> float:
    """One step that prefills `new_tokens` and decodes one token of each sequence: bound by
    memory (the decode step) or by compute (all tokens), whichever is longer."""
    memory_s = decode_s(costs, sequences, context_tokens, context_token_s)
    if new_tokens <= 0:
        return memory_s
    compute_s = (
        prefill_s(costs, new_tokens, cached_tokens)
        + costs.token_s * sequences
        + context_token_s * context_tokens
    )
    return max(memory_s, compute_s)


def waiting_pays(costs: Costs, shared_tokens: int, own_tokens: int, mates: int) -> bool:
    """Whether a prompt lets a step go by in which `mates` compute `shared_tokens` that it begins
    with. That costs the fixed part of one more step; it saves the shared tokens, and keeps
    `own_tokens` out of each mate's way."""
    saved_s = costs.token_s * (shared_tokens + own_tokens * mates)
    return shared_tokens > 0 and saved_s >= costs.step_s


def transfer_s(link: LinkCosts, size_bytes: int) -> float:
    """A pull of `size_bytes`: setup + bytes / bandwidth. Nothing to pull takes no time."""
    if size_bytes <= 0:
        return 0.0
    return link.setup_s + size_bytes / link.bytes_per_s


def exposed_s(compute_s: float, transfer_s: float, chunks: int) -> float:
    """What `chunks` transfers of `transfer_s`, each behind a chunk of `compute_s`, add after the
    last chunk was computed: the last one always, of the others what compute does not hide."""
    if chunks <= 0:
        return 0.0
    return transfer_s + (chunks - 1) * max(0.0, transfer_s - compute_s)


def _tokens_s(costs: Costs, new_tokens: int, cached_tokens: int) -> float:
    total = new_tokens + cached_tokens
    return costs.token_s * new_tokens + costs.pair_s * (total**2 - cached_tokens**2)
