"""Placed requests until they end: what each decode worker will be running a while from now.

Answers how many sequences and tokens there will be, and how many pages at the worst moment
(algorithms, sections 9 and 14). What a worker reports bounds what is believed: a flight whose end
was never told weighs nothing once the worker reports fewer sequences.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from shared.ids import Attempt, RequestId, WorkerId

_MOST: Final = 65_536


@dataclass(frozen=True, slots=True)
class Flight:
    """One placed attempt."""

    request: RequestId
    attempt: Attempt
    decode: WorkerId
    starts_s: float
    """When its first token was expected."""
    token_s: float
    """Expected time per token."""
    prompt_tokens: int
    expected_tokens: int
    max_tokens: int
    expires: float

    def out(self, now: float) -> float:
        """Tokens it should have by now, at least."""
        return max(0.0, (now - self.starts_s) / self.token_s) if self.token_s > 0 else 0.0


class Flights:
    """By request and by decode worker, oldest first."""

    def __init__(self) -> None:
        self._all: OrderedDict[RequestId, Flight] = OrderedDict()
        self._on: dict[WorkerId, dict[RequestId, Flight]] = {}
        self._worst: dict[WorkerId, int] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, flight: Flight) -> None:
        """Placed; replaces an older attempt."""
        self.remove(flight.request)
        self._all[flight.request] = flight
        self._on.setdefault(flight.decode, {})[flight.request] = flight
        self._worst[flight.decode] = self._worst.get(flight.decode, 0) + flight.max_tokens
        while len(self._all) > _MOST:
            self.remove(next(iter(self._all)))

    def remove(self, request: RequestId) -> Flight | None:
        """It ended."""
        gone = self._all.pop(request, None)
        if gone is not None:
            there = self._on[gone.decode]
            there.pop(request, None)
            self._worst[gone.decode] -= gone.max_tokens
            if not there:
                del self._on[gone.decode]
                del self._worst[gone.decode]
        return gone

    def get(self, request: RequestId) -> Flight | None:
        return self._all.get(request)

    def lost(self, decode: WorkerId) -> None:
        """The worker is gone."""
        for request in list(self._on.get(decode, ())):
            self.remove(request)

    def expire(self, now: float) -> None:
        """Forget those past their deadline."""
        for request in [r for r, flight in self._all.items() if flight.expires <= now]:
            self.remove(request)

    def worst_tokens(self, decode: WorkerId) -> int:
        """Answer tokens there if all ran to their limits."""
        return self._worst.get(decode, 0)

    def believed(self, decode: WorkerId, reported: int) -> list[Flight]:
        """The newest flights there, no more than the worker reports and was just given."""
        there = self._on.get(decode)
        if not there or reported <= 0:
            return []
        return list(there.values())[-reported:]


def load_at(
    flights: Iterable[Flight],
    at_s: float,
    now: float,
    survives: Callable[[float, float], float],
    deviations: float = 0.0,
) -> tuple[float, float]:
    """(Sequences, context tokens) at `at_s` of those that decode or will by then: what is expected,
    and so many standard deviations more. `survives(more, after)`: P(an answer with `after` tokens
    gets `more`)."""
    sequences = context = doubt = context_doubt = 0.0
    for flight in flights:
        if flight.starts_s > at_s:
            continue
        out = flight.out(now)
        later = flight.out(at_s)
        if later >= flight.max_tokens:
            continue
        share, tokens = survives(later - out, out), flight.prompt_tokens + later
        sequences += share
        context += share * tokens
        doubt += share * (1.0 - share)
        context_doubt += share * (1.0 - share) * tokens * tokens
    return (
        sequences + deviations * math.sqrt(doubt),
        context + deviations * math.sqrt(context_doubt),
    )


def peak(members: Iterable[tuple[float, float]]) -> float:
    """Largest memory that sequences (run, left) will need together: each holds `run` and grows
    by `left`. Sorted by left, longest first: max over i of left_i * i + sum of run_j, j <= i
    (LightLLM's future peak; any unit)."""
    most = total = 0.0
    ordered = sorted(members, key=lambda member: -member[1])
    for count, (run, left) in enumerate(ordered, start=1):
        total += run
        most = max(most, left * count + total)
    return most
