"""What all parts of the decode core share: rules, cache, live sequences, counts, and the
actions collected while one event is handled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from services.decode.core.actions import Action, Attributes, Traced
from services.decode.core.rules import DecodeRules
from services.decode.core.sequences import Sequence
from shared.ids import Attempt, RequestId
from shared.kv.cache import PageCache


@dataclass(slots=True)
class Desk:
    """One per core. `sequences` is in order of admission: first come, first served."""

    rules: DecodeRules
    cache: PageCache
    sequences: dict[RequestId, Sequence] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    out: list[Action] = field(default_factory=list)

    def find(self, request: RequestId, attempt: Attempt) -> Sequence | None:
        """The live sequence of exactly this attempt."""
        sequence = self.sequences.get(request)
        return sequence if sequence is not None and sequence.job.attempt == attempt else None

    def trace(
        self, sequence: Sequence, name: str, start_s: float, end_s: float, attributes: Attributes
    ) -> None:
        self.out.append(
            Traced(sequence.job.request, sequence.job.attempt, name, start_s, end_s, attributes)
        )
