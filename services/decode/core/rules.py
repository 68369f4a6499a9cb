"""The numbers that shape the decode core, and the rule that ends a generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.costs import Costs, LinkCosts, WorkCosts
from shared.ids import Epoch, WorkerId
from shared.wire.requests import Sampling, WorkerRef

NO_COSTS: Final = WorkCosts(0.0, 0.0, 0.0, 0.0, 0.0)


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
    step_policy: str = "fixed"
    """Whether prompts share `step_tokens`, or what the running sequences can spare (slack.py)."""
    tpot_target_s: float = 0.1
    """Seconds between two tokens that the latter keeps."""
    alone_tokens: int = 512
    """The same for a step in which no sequence decodes: nobody is held up."""
    forecast: bool = True
    """Let a sequence in only if everyone's growth fits; else if the present sizes fit."""
    point_s: float = 0.1
    """Seconds of earlier arrival that one point of priority is worth."""
    costs: Costs = NO_COSTS
    """What the engine was measured at."""
    plane_address: str = ""
    layout_digest: str = ""
    """How peers reach and know these pages. Empty: nothing is offered to the pool."""
    page_bytes: int = 0
    pool_link: LinkCosts = LinkCosts(0.005, 1e9)  # noqa: RUF009 - a constant
    """What fetching from the pool costs before it was measured."""
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
    log_told_tokens: int = 65_536
    """In all of them together tokens with logprobs, which take a kilobyte each. An attempt with
    more than these keeps no log: a gateway that lost its end starts another attempt."""
    ended_s: float = 900.0
    ended_limit: int = 16384
    """How long, and how many, ended attempts are remembered."""

    @property
    def me(self) -> WorkerRef:
        return WorkerRef(self.worker, self.epoch, self.plane_address)


def pages_for(tokens: int, block_tokens: int) -> int:
    """Pages that hold so many token positions."""
    return -(-tokens // block_tokens)


def finish_of(token: int, generated: int, sampling: Sampling) -> str | None:
    """How the generation ends with `token` as its `generated`-th token, or None."""
    if token in sampling.stop_token_ids:
        return "stop"
    return "length" if generated >= sampling.max_tokens else None
