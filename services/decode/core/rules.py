"""The numbers that shape the decode core, and the rule that ends a generation."""

from __future__ import annotations

from dataclasses import dataclass

from shared.ids import Epoch, WorkerId
from shared.wire.requests import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRules:
    """Fixed for the life of one incarnation."""

    worker: WorkerId
    epoch: Epoch
    model_digest: str
    tokenizer_digest: str
    dtype: str
    block_tokens: int
    context_tokens: int
    vocab_size: int
    step_tokens: int = 512
    """Most tokens of one step; running sequences come first, prompts share the rest."""
    max_sequences: int = 64
    queue_limit: int = 256
    """Jobs that may wait for pages or a slot at once."""
    reserve_wait_s: float = 1.0
    """How long a job may wait for its reservation before it is refused."""
    lease_s: float = 30.0
    recompute_tokens: int = 8192
    """Most prompt tokens that decode computes itself when prefill cannot deliver them."""
    preemptions: int = 2
    """After so many a sequence comes back only with all the pages it can ever need."""
    log_s: float = 60.0
    log_limit: int = 4096
    """How long, and how many, token logs of finished attempts are kept."""
    ended_s: float = 900.0
    ended_limit: int = 16384
    """How long, and how many, ended attempts are remembered."""


def pages_for(tokens: int, block_tokens: int) -> int:
    """Pages that hold so many token positions."""
    return -(-tokens // block_tokens)


def finish_of(token: int, generated: int, sampling: Sampling) -> str | None:
    """How the generation ends with `token` as its `generated`-th token, or None."""
    if not sampling.ignore_eos and token in sampling.stop_token_ids:
        return "stop"
    return "length" if generated >= sampling.max_tokens else None
