"""Who takes part in the next step: all that decode, then prompts in order of arrival.

Stall-free in the sense of Sarathi-Serve (OSDI 2024): a prompt only ever takes the share of a
step that the running sequences leave, so no running sequence waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.decode.core.sequences import Sequence
from shared.engine.batch import Draw, StepItem


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


def plan(ready: Iterable[Sequence], step_tokens: int, block_tokens: int) -> list[Share]:
    """The shares of one step. `ready` is in order of arrival and has its pages."""
    decoding: list[Share] = []
    filling: list[Sequence] = []
    for sequence in ready:
        if sequence.decoding:
            decoding.append(Share(sequence, *sequence.next_range()))
        else:
            filling.append(sequence)
    budget = max(step_tokens - len(decoding), block_tokens)
    return [*decoding, *_chunks(filling, budget, block_tokens)]


def _chunks(filling: list[Sequence], budget: int, block_tokens: int) -> list[Share]:
    """First come, first served; a chunk that is not the last ends on a block border."""
    chunks: list[Share] = []
    for sequence in filling:
        start, stop = sequence.next_range()
        if stop - start > budget:
            stop = (start + budget) // block_tokens * block_tokens
        if stop <= start:
            break
        chunks.append(Share(sequence, start, stop))
        budget -= stop - start
    return chunks


def step_item(share: Share) -> StepItem:
    """The engine's view of a share. The draw's position counts in the client's stream, so the
    same token comes out whatever the batch, the chunks or the attempt."""
    sequence = share.sequence
    sampling = sequence.job.sampling
    draw = None
    if share.draws:
        position = sequence.job.first_index + sequence.generated
        draw = Draw(sampling.temperature, sampling.top_p, sampling.seed, position)
    return StepItem(
        tokens=tuple(sequence.tokens[share.start : share.stop]),
        start=share.start,
        page_table=sequence.table(share.stop),
        draw=draw,
    )
