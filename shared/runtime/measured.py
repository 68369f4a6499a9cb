"""What a worker measured since its last heartbeat: a few engine steps and reads of peers' pages.

The scheduler learns speeds from them. The newest few of each are kept; sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from shared.ids import WorkerId
from shared.shared_reads import SharedReads
from shared.wire.workers import LinkSample, StepSample

MOST: Final = 8


class Measured:
    """`step` and `read` put in, `take` takes out."""

    def __init__(self) -> None:
        self._shared = SharedReads()
        self._steps: deque[StepSample] = deque(maxlen=MOST)
        self._reads: deque[LinkSample] = deque(maxlen=MOST)

    def step(self, items: Iterable[tuple[int, int]], seconds: float) -> None:
        """An engine step over (tokens, tokens before them) of each sequence. One with a single
        token decodes; the others compute prompt. Several prompts count as one of as many tokens
        that attends to as many pairs."""
        new = sequences = context = 0
        pairs = 0
        for tokens, before in items:
            if tokens == 1 and before > 0:
                sequences += 1
                context += before
            else:
                new += tokens
                pairs += (tokens + before) ** 2 - before**2
        cached = max(0, pairs - new**2) // (2 * new) if new else 0
        self._steps.append(StepSample(new, cached, sequences, context, seconds))

    def read(self, peer: WorkerId, size_bytes: int, seconds: float, now: float) -> None:
        """A read of a peer's pages delivered."""
        alone_s = self._shared.alone_s(size_bytes, seconds, now)
        self._reads.append(LinkSample(peer, size_bytes, alone_s))

    def take(self) -> tuple[tuple[StepSample, ...], tuple[LinkSample, ...]]:
        """Everything, once."""
        found = tuple(self._steps), tuple(self._reads)
        self._steps.clear()
        self._reads.clear()
        return found
