"""What decode knows of the pages that prefill makes for one attempt. State only."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.errors import Code
from shared.wire.requests import PageRef, WorkerRef
from shared.wire.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Offer:
    """One announced page and the ticket that opens it."""

    ref: PageRef
    ticket: str
    link: str


@dataclass(slots=True)
class Handoff:
    """Until `committed`, each wanted position is waited for, pulled, or absent."""

    owner: WorkerRef
    wanted: set[int] = field(default_factory=set)
    """Prompt positions whose pages are not here, verified."""
    offers: dict[int, Offer] = field(default_factory=dict)
    pulling: dict[int, int] = field(default_factory=dict)
    """Position -> number of the pull it is in, until that pull is verified."""
    retried: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)
    """Wanted positions that failed twice: prefill is not asked again."""
    heard_s: float = 0.0
    """When the owner last answered or announced: a lease lives no longer than that + lease_s."""
    first_seen_s: float | None = None
    """When prefill was first heard of: from then on a lease must exist."""
    first_token: int | None = None
    first_token_s: float | None = None
    """When the last chunk was announced: what is still on its way then is waited for."""
    first_finish: str | None = None
    first_logprobs: TokenLogprobs | None = None
    cached_tokens: int | None = None
    lost: Code | None = None
    """Why no more pages will come."""
    committed: bool = False

    @property
    def outstanding(self) -> bool:
        """Whether something that only prefill can deliver is still missing."""
        return self.first_token is None or not self.wanted <= self.absent
