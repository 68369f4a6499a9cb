"""What was asked lately, and how much of it met its objectives.

Joint samples (prompt, cached, answer), never means: two kinds of requests do not make a third.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from shared.ids import RequestId
from shared.wire.requests import Placement, PlacementEnded, PlaceRequest, Refused

_MOST: Final = 2048
_SAMPLES: Final = 128


@dataclass(slots=True)
class Asked:
    """One request, from its first question to its end."""

    model: str
    at_s: float
    prompt_tokens: int
    answer_tokens: int
    """Expected, then true."""
    ttft_slo_s: float
    tpot_slo_s: float
    needs_prefill: bool
    """The client insists on a handoff."""
    cached_tokens: int = 0
    placed_s: float | None = None
    """The last attempt's placement."""
    first_s: float | None = None
    """The first token of all attempts."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as the forecast takes it."""

    new_tokens: int
    cached_tokens: int
    answer_tokens: int
    ttft_slo_s: float
    tpot_slo_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """What one model is asked for: requests per second, and what they look like."""

    rate: float
    samples: tuple[Sample, ...]
    requests: int
    needs_prefill: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """Of the requests that finished within the window, or that found no place in time."""

    ended: int
    good: int
    ttft_met: int
    tpot_met: int

    def share(self, met: int) -> float:
        return met / self.ended if self.ended else 1.0


@dataclass(frozen=True, slots=True)
class _Ending:
    model: str
    at_s: float
    ttft_met: bool
    tpot_met: bool


class Demand:
    """Bounded in requests; the oldest are forgotten first."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._asked: OrderedDict[RequestId, Asked] = OrderedDict()
        self._endings: deque[_Ending] = deque(maxlen=_MOST)

    def asked(self, ask: PlaceRequest, asked: Asked, reply: Placement | Refused) -> None:
        """The scheduler answered a question; the same request may ask again and again."""
        known = self._asked.get(ask.request)
        if known is None:
            if ask.attempt > 1:
                return  # a later attempt of a request that is forgotten or was never ours
            known = self._asked[ask.request] = asked
            while len(self._asked) > _MOST:
                self._asked.popitem(last=False)
        if isinstance(reply, Placement):
            known.placed_s = asked.at_s
            known.cached_tokens = asked.cached_tokens

    def ended(self, event: PlacementEnded, now: float) -> None:
        """An attempt is over. Judged is a request that finished, by its first token of all."""
        known = self._asked.get(event.request)
        if known is None or known.placed_s is None:
            return
        if known.first_s is None and event.ttft_s > 0.0:
            known.first_s = known.placed_s + event.ttft_s
        if event.outcome != "finished":
            return
        if event.emitted > 0:
            known.answer_tokens = event.emitted
        first_s = math.inf if known.first_s is None else known.first_s - known.at_s
        tpot_met = 0.0 <= event.tpot_s <= known.tpot_slo_s
        self._endings.append(_Ending(known.model, now, first_s <= known.ttft_slo_s, tpot_met))

    def load(self, model: str, now: float) -> Load:
        """Of the last window. With fewer requests than fit into it the rate is theirs alone."""
        since_s = now - self._window_s
        recent = [a for a in self._asked.values() if a.model == model and a.at_s > since_s]
        if not recent:
            return Load(0.0, (), 0, needs_prefill=False)
        full = len(self._asked) == _MOST
        span_s = now - recent[0].at_s if full else self._window_s
        step = max(1, math.ceil(len(recent) / _SAMPLES))
        return Load(
            rate=len(recent) / max(span_s, 1e-3),
            samples=tuple(_sample(asked) for asked in recent[::step]),
            requests=len(recent),
            needs_prefill=any(asked.needs_prefill for asked in recent),
        )

    def kept(self, model: str, now: float) -> Kept:
        """What the last window kept. Who waits for a place for longer than its first token may
        take has missed it."""
        since_s = now - self._window_s
        recent = [e for e in self._endings if e.model == model and e.at_s > since_s]
        outside = sum(
            a.placed_s is None and a.model == model and since_s < a.at_s <= now - a.ttft_slo_s
            for a in self._asked.values()
        )
        return Kept(
            ended=len(recent) + outside,
            good=sum(e.ttft_met and e.tpot_met for e in recent),
            ttft_met=sum(e.ttft_met for e in recent),
            tpot_met=sum(e.tpot_met for e in recent) + outside,
        )

    def expire(self, now: float) -> None:
        """Forget what two windows have seen: the end of a long answer is still of use."""
        limit_s = now - 2 * self._window_s
        while self._asked and next(iter(self._asked.values())).at_s < limit_s:
            self._asked.popitem(last=False)
        while self._endings and self._endings[0].at_s < now - self._window_s:
            self._endings.popleft()

    def judge_anew(self) -> None:
        """The cluster has changed: what was kept before says nothing about it."""
        self._endings.clear()


def _sample(asked: Asked) -> Sample:
    cached = min(max(0, asked.cached_tokens), max(0, asked.prompt_tokens - 1))
    return Sample(
        new_tokens=max(1, asked.prompt_tokens - cached),
        cached_tokens=cached,
        answer_tokens=max(1, asked.answer_tokens),
        ttft_slo_s=asked.ttft_slo_s,
        tpot_slo_s=asked.tpot_slo_s,
    )
