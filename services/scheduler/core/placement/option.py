"""A feasible way to serve a request, with what it would take; and who may propose one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from services.scheduler.core.cluster import Worker
from services.scheduler.core.placement.view import View
from shared.wire.requests import Candidate, WorkerRef

MAX_REPORTED = 16

Item = TypeVar("Item")


class Chance(Protocol):
    """A seeded generator (random.Random is one)."""

    def choice(self, options: Sequence[Item], /) -> Item: ...

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Fetch:
    """Blocks to copy instead of computing them: the `blocks` after the cached ones."""

    owner: Worker
    blocks: int
    seconds: float


@dataclass(slots=True)
class Option:
    """A pair, or a decode worker that computes the prompt itself (`prefill` None)."""

    prefill: Worker | None
    decode: Worker
    cached_blocks: int
    ttft_s: float
    work_s: float
    """Of the worker that computes the prompt."""
    score: float
    """Least is best. Seconds, or the policy's own unit."""
    terms: dict[str, float]
    note: str
    fetch: Fetch | None = None
    lost: str = ""
    moved_bytes: int = 0
    """That it puts on the link of its reader."""

    @property
    def site(self) -> Worker:
        """Where the prompt is computed."""
        return self.prefill or self.decode

    def candidate(self) -> Candidate:
        """As it is reported."""
        return Candidate(
            prefill=self.prefill.report.worker if self.prefill else None,
            decode=self.decode.report.worker,
            score_s=round(self.score, 6),
            terms={name: value and round(value, 6) for name, value in self.terms.items()},
            note=self.note,
            lost=self.lost,
        )


@dataclass(frozen=True, slots=True)
class Offer:
    """What may be considered now. Both kinds compete when both are allowed."""

    prefill: bool = True
    """Pairs of a prefill and a decode worker."""
    colocated: bool = False
    """Decode workers that compute the prompt themselves ..."""
    most_left: int | None = None
    """... where fewer prompt tokens than this are left to compute. None: any."""
    only: WorkerRef | None = None
    """... and of them this incarnation alone."""


@dataclass(slots=True)
class Decision:
    """What a policy chose, and what it looked at, best first."""

    chosen: Option
    options: list[Option]
    reason: str
    policy: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    """Further facts for the trace."""


class Policy(Protocol):
    """Chooses; sees the world through a `View` and changes nothing in it."""

    def decide(self, view: View, offer: Offer) -> Decision | None:
        """None when nothing in the offer fits together."""
        ...

    def placed(self, view: View, option: Option) -> None:
        """It was done: a policy with a memory of its own remembers it."""
        ...
