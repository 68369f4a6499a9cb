"""What all parts of the decode core share: rules, cache, live sequences, counts, and the
actions collected while one event is handled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from services.decode.core.actions import Action, Attributes, Traced
from services.decode.core.rules import DecodeRules
from services.decode.core.sequences import Sequence, Stage
from shared.ids import Attempt, BlockHash, RequestId
from shared.kv.cache import PageCache

_RANK: Final = attrgetter("virtual_s", "order")
"""As `Sequence.rank`, without a call for each."""


@dataclass(slots=True)
class Desk:
    """One per core. `sequences` is in order of admission."""

    rules: DecodeRules
    cache: PageCache
    sequences: dict[RequestId, Sequence] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    out: list[Action] = field(default_factory=list)
    sealing: set[BlockHash] = field(default_factory=set)
    """Blocks that were computed here and wait for their checksum."""
    pages: int = field(init=False)
    """Of the worker, in whatever state."""

    def __post_init__(self) -> None:
        self.pages = self.cache.counts().total

    def find(self, request: RequestId, attempt: Attempt) -> Sequence | None:
        """The live sequence of exactly this attempt."""
        sequence = self.sequences.get(request)
        return sequence if sequence is not None and sequence.job.attempt == attempt else None

    @property
    def parked(self) -> bool:
        return Stage.PARKED in [sequence.stage for sequence in self.sequences.values()]

    def ranked(self) -> list[Sequence]:
        """Live sequences, the first in rank first."""
        return sorted(self.sequences.values(), key=_RANK)

    def trace(
        self,
        sequence: Sequence,
        name: str,
        start_s: float,
        end_s: float,
        attributes: Attributes,
        events: tuple[tuple[float, str], ...] = (),
    ) -> None:
        request, attempt = sequence.job.request, sequence.job.attempt
        self.out.append(Traced(request, attempt, name, start_s, end_s, attributes, events=events))
