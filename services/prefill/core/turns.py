"""Whose turn it is among waiting jobs: groups by what is cached, in proportion, with ageing.

Preble's fair local queue (Srivatsa et al., 2024), in tokens instead of requests: group g of ten
holds jobs of which g tenths need not be computed, and may start (g + 1) quanta of work a round.
Waiting lifts a job by a group each tenth of the objective, priority by up to four; inside a group
the first come goes first. So the cached go first, and nobody starves:

    a job starts before 55 * (K + 10) * (L + Q) further tokens were begun, where K jobs waited
    before it, none has more than L tokens to compute, and Q is the quantum;
    once in the highest group, before 5.5 * W + 13.5 * L + 90 * Q further tokens were begun, where
    those before it have W tokens to compute.

A job of no priority is in the highest group once it has waited nine ages. Knows jobs' figures
only; touches no pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

GROUPS: Final = 10
QUANTUM_TOKENS: Final = 512
_PRIORITY_STEP: Final = 25
"""Points of priority that lift a job by one group."""


class Waiting(Protocol):
    """What is looked at of a job."""

    group: int

    @property
    def pressing(self) -> bool:
        """It was passed over often enough: nobody goes before it any more."""
        ...


Job = TypeVar("Job", bound=Waiting)


def group_of(
    cached_tokens: int, prompt_tokens: int, waited_s: float, age_s: float, priority: int
) -> int:
    """0 (cold) to 9. `age_s`: seconds of waiting that are worth one group."""
    share = GROUPS * cached_tokens // max(1, prompt_tokens)
    aged = int(min(float(GROUPS), max(0.0, waited_s) / age_s)) if age_s > 0.0 else 0
    return max(0, min(GROUPS - 1, share + aged + priority // _PRIORITY_STEP))


def start_bound_tokens(before: int, longest_tokens: int) -> int:
    """Tokens that may be begun at most until a job starts before which so many wait, none with
    more to compute than `longest_tokens`: the bound above."""
    rounds = sum(range(1, GROUPS + 1))
    return rounds * (before + GROUPS) * (longest_tokens + QUANTUM_TOKENS)


def aged_bound_tokens(before_tokens: int, longest_tokens: int) -> int:
    """Tokens that may be begun at most until a job starts that is in the highest group, where
    those that came before it have so many to compute, and none more than `longest_tokens`.

    The highest group takes its jobs as they came, so it begins at most W tokens before this one.
    It waits all the time, so its credit is used up at each of the R refills: it has begun at least
    10*Q*(R - 1) - L, and R <= 1 + (W + L) / (10*Q). A group below begins no more than its credit of
    R + 1 rounds and one job too many: all nine of them at most 45*Q*(R + 1) + 9*L."""
    below = sum(range(1, GROUPS))
    refills = 1 + (before_tokens + longest_tokens) // (GROUPS * QUANTUM_TOKENS)
    others = below * QUANTUM_TOKENS * (refills + 1) + (GROUPS - 1) * longest_tokens
    return before_tokens + others


class Turns:
    """The credits of this round. A group that starts a job longer than its credit owes the rest."""

    def __init__(self, quantum_tokens: int = QUANTUM_TOKENS) -> None:
        self._full = [(group + 1) * quantum_tokens for group in range(GROUPS)]
        self._credits = list(self._full)

    def in_turn(self, queued: Sequence[Job]) -> Iterator[Job]:
        """All of them, in the order of their turns; `queued` is in order of arrival. Whoever takes
        one calls `charge` before asking for the next."""
        groups: list[deque[Job]] = [deque() for _ in range(GROUPS)]
        for job in queued:
            if job.pressing:
                yield job
            else:
                groups[job.group].append(job)
        while waiting := [group for group in range(GROUPS) if groups[group]]:
            open_groups = [group for group in waiting if self._credits[group] > 0]
            if open_groups:
                yield groups[open_groups[-1]].popleft()
            else:
                self._refill()

    def charge(self, job: Waiting, tokens: int) -> None:
        """The job begins: so many tokens are to be computed for it."""
        self._credits[job.group] -= tokens

    def _refill(self) -> None:
        """The next round. Unused credit is not carried over, debt is."""
        self._credits = [
            min(full, credit + full) for credit, full in zip(self._credits, self._full, strict=True)
        ]
