"""Who takes part in the next step: all that decode, then prompts, under a token budget.

Stall-free in the sense of Sarathi-Serve (Agrawal et al., OSDI 2024): a prompt only ever takes
the share of a step that the running sequences leave, so no running sequence waits for it.
Prompts take turns by their arrival, what is cached of them counting as a bounded head start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from services.decode.core.sequences import Sequence
from shared.costs import Costs, waiting_pays
from shared.engine.batch import StepItem
from shared.engine.drawing import draw_of
from shared.ids import BlockHash

BEGUN_S: Final = 10.0
"""A prompt that was begun counts as having come so much earlier: it is finished before a new
one begins, unless that has far more priority or has waited far longer."""
GROUPS: Final = 10
GROUP_S: Final = 0.1
"""Head start of each tenth of a prompt that is cached. So whoever comes more than a second after
a cold prompt never begins before it, however much of it is cached."""


@dataclass(frozen=True, slots=True)
class Share:
    """Positions [start, stop) of one sequence; it draws when the last token is among them."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def draws(self) -> bool:
        return self.stop == len(self.sequence.tokens)

    @property
    def fills(self) -> bool:
        """Whether this computes a prompt (again) instead of one next token."""
        return self.stop - self.start > 1 or not self.draws


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens of one step. A chunk that is not a prompt's last ends on a block border."""

    step_tokens: int
    """While somebody decodes: what one token more for everybody may cost."""
    alone_tokens: int
    """While nobody does, so that nobody is held up."""
    block_tokens: int

    def left(self, decoding: int) -> int:
        """For prompts, beside so many running sequences. Never less than a block: prompts
        always get on."""
        if not decoding:
            return max(self.alone_tokens, self.block_tokens)
        return max(self.step_tokens - decoding, self.block_tokens)


def plan(
    ready: Iterable[Sequence], budget: Budget, costs: Costs, left: int | None = None
) -> list[Share]:
    """The shares of one step. `ready` is in order of rank and has its pages. `left`: tokens for
    prompts; None: what the budget leaves."""
    decoding: list[Share] = []
    filling: list[Sequence] = []
    for sequence in ready:
        if sequence.decoding:
            decoding.append(Share(sequence, sequence.kv_tokens, sequence.kv_tokens + 1))
        else:
            filling.append(sequence)
    filling.sort(key=_turn)
    if left is None:
        left = budget.left(len(decoding))
    return [*decoding, *_chunks(filling, left, budget.block_tokens, costs)]


def _turn(sequence: Sequence) -> tuple[float, int]:
    virtual_s, order = sequence.rank
    if sequence.chunks:
        return (virtual_s - BEGUN_S, order)
    group = min(GROUPS, GROUPS * sequence.kv_tokens // max(1, len(sequence.tokens)))
    return (virtual_s - group * GROUP_S, order)


def _chunks(filling: list[Sequence], budget: int, block_tokens: int, costs: Costs) -> list[Share]:
    """In turn. What is left of the budget may be too little for one and enough for the next."""
    chunks: list[Share] = []
    computing: set[BlockHash] = set()
    for sequence in filling:
        if budget <= 0:
            break
        if _stands_back(sequence, computing, budget, len(chunks), costs):
            sequence.waited_at = sequence.lead_blocks
            continue
        start, stop = sequence.next_range()
        if stop - start > budget:
            stop = (start + budget) // block_tokens * block_tokens
        if stop <= start:
            continue
        chunks.append(Share(sequence, start, stop))
        computing.update(sequence.names[start // block_tokens : stop // block_tokens])
        budget -= stop - start
    return chunks


def _stands_back(
    sequence: Sequence, computing: set[BlockHash], budget: int, mates: int, costs: Costs
) -> bool:
    """Whether to let this step go by, since a mate computes the next blocks in it. Never twice for
    the same block: a mate that is cancelled holds nobody up for longer."""
    lead = sequence.lead_blocks
    if sequence.chunks or sequence.holes or lead <= sequence.waited_at:
        return False
    reusable = sequence.names[lead : (len(sequence.tokens) - 1) // sequence.block_tokens]
    shared = sum(1 for _ in takewhile(computing.__contains__, reusable))
    own_tokens = min(len(sequence.tokens) - sequence.kv_tokens, budget)
    return waiting_pays(costs, shared * sequence.block_tokens, own_tokens, mates)


def step_item(share: Share) -> StepItem:
    """The engine's view of a share. The draw's position counts in the client's stream, so the
    same token comes out whatever the batch, the chunks or the attempt."""
    sequence = share.sequence
    job = sequence.job
    draw = None
    if share.draws:
        position = job.first_index + sequence.generated
        prompt_tokens = sequence.prompt_tokens - job.first_index
        draw = draw_of(job.sampling, position, prompt_tokens, sequence.history)
    return StepItem(
        tokens=tuple(sequence.tokens[share.start : share.stop]),
        start=share.start,
        page_table=sequence.table(share.stop),
        draw=draw,
    )
