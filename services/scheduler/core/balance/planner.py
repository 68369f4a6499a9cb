"""Which role lacks a worker: compares today's split with its neighbours, and says so in a sentence.

Proposes nothing without need (objectives are missed), gain (by the forecast) and patience (several
looks in a row). Never leaves a needed role without a worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from services.scheduler.core.balance.demand import Kept, Load
from services.scheduler.core.balance.forecast import Forecast, Speeds, Split, forecast
from services.scheduler.core.balance.settings import BalanceSettings

_MOST_WORKERS: Final = 64
_LEAST_ENDED: Final = 5
_NEARLY: Final = 0.99


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that would serve better, and why, in one sentence."""

    model: str
    source: str
    to: str
    split: Split
    """As it is."""
    better: Split
    gain: float
    """Times today's worth."""
    reason: str


@dataclass(frozen=True, slots=True)
class Strain:
    """Who has no slack left right now: ends tell of it only when an answer is over."""

    late_prefills: int
    """A job that came now would start too late for its first token."""
    prefills: int
    slow_decodes: int
    """Their steps take longer than a token may."""
    decodes: int

    @property
    def present(self) -> bool:
        """Of all workers of a role."""
        late = self.prefills and self.late_prefills == self.prefills
        return bool(late or (self.decodes and self.slow_decodes == self.decodes))

    def __str__(self) -> str:
        return (
            f"{self.late_prefills} of {self.prefills} prefill workers start too late, "
            f"{self.slow_decodes} of {self.decodes} decode workers are too slow a token"
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """What the service itself tells of how it does."""

    kept: Kept
    strain: Strain


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a model saw."""

    model: str
    split: Split
    load: Load
    seen: Seen
    now: Forecast
    wanted: dict[str, int]
    """Workers by role that this load would need: advice for autoscalers."""
    proposal: Proposal | None


@dataclass(slots=True)
class Patience:
    """How many looks in a row wanted the same change."""

    to: str = ""
    looks: int = 0

    def agrees(self, to: str) -> int:
        self.looks = self.looks + 1 if to and to == self.to else int(bool(to))
        self.to = to
        return self.looks


@dataclass(slots=True)
class Planner:
    """One model's."""

    settings: BalanceSettings
    patience: Patience = field(default_factory=Patience)

    def look(
        self, model: str, split: Split, load: Load, seen: Seen, speeds: Speeds, takes_s: float
    ) -> Look:
        """One look at the load. The proposal is there once enough looks have agreed."""
        today = forecast(load, split, speeds)
        found = self._best(model, split, load, seen, speeds, today, takes_s)
        looks = self.patience.agrees(found.to if found else "")
        patient = found if found and looks >= self.settings.ticks else None
        wanted = _wanted(load, speeds, self.settings.target)
        return Look(model, split, load, seen, today, wanted, patient)

    def _best(
        self,
        model: str,
        split: Split,
        load: Load,
        seen: Seen,
        speeds: Speeds,
        today: Forecast,
        takes_s: float,
    ) -> Proposal | None:
        settings = self.settings
        if load.requests < settings.least_requests or not self._missed(seen):
            return None
        best: tuple[str, Split, Forecast] | None = None
        for source, better in self._neighbours(split, load):
            then = forecast(load, better, speeds)
            if then.worth < settings.gain * today.worth or then.worth <= 0.0:
                continue
            meanwhile = forecast(load, _without(split, source), speeds)
            loss = (today.worth - meanwhile.worth) * takes_s
            if (then.worth - today.worth) * settings.horizon_s <= loss:
                continue
            if best is None or then.worth > best[2].worth:
                best = source, better, then
        if best is None:
            return None
        source, better, then = best
        gain = then.worth / today.worth if today.worth > 0.0 else math.inf
        reason = _reason(load, seen, split, today, better, then, settings.target)
        to = "decode" if source == "prefill" else "prefill"
        return Proposal(model, source, to, split, better, gain, reason)

    def _missed(self, seen: Seen) -> bool:
        """The service says itself that it is not good enough, or will not be."""
        kept = seen.kept
        missed = kept.ended >= _LEAST_ENDED and kept.share(kept.good) < self.settings.target
        return missed or seen.strain.present

    def _neighbours(self, split: Split, load: Load) -> list[tuple[str, Split]]:
        """One worker changes; each needed role keeps one."""
        found = []
        floor = 0 if self.settings.may_colocate and not load.needs_prefill else 1
        if split.prefill > floor:
            found.append(("prefill", Split(split.prefill - 1, split.decode + 1)))
        if split.decode > 1:
            found.append(("decode", Split(split.prefill + 1, split.decode - 1)))
        return found


def _without(split: Split, source: str) -> Split:
    """While a worker of that role changes."""
    if source == "decode":
        return Split(split.prefill, split.decode - 1)
    return Split(split.prefill - 1, split.decode)


def _wanted(load: Load, speeds: Speeds, target: float) -> dict[str, int]:
    """The least workers by role with which both objectives would be kept; where more workers
    help no further, as many as help."""
    if not load.samples:
        return {"prefill": 0, "decode": 0}
    share, most = math.sqrt(target), _MOST_WORKERS

    def ttft_met(count: int) -> float:
        return forecast(load, Split(count, most), speeds).ttft_met

    def tpot_met(count: int) -> float:
        found = forecast(load, Split(most, count), speeds)
        return found.tpot_met * min(1.0, found.ttft_met / ceiling) if ceiling else found.tpot_met

    ceiling = ttft_met(most)
    prefill = next(c for c in range(1, most + 1) if ttft_met(c) >= min(share, _NEARLY * ceiling))
    limit = min(share, _NEARLY * tpot_met(most))
    decode = next(c for c in range(1, most + 1) if tpot_met(c) >= limit)
    return {"prefill": prefill, "decode": decode}


def _reason(
    load: Load,
    seen: Seen,
    split: Split,
    today: Forecast,
    better: Split,
    then: Forecast,
    target: float,
) -> str:
    count, kept = len(load.samples), seen.kept
    prompt = sum(s.new_tokens for s in load.samples) / count
    answer = sum(s.answer_tokens for s in load.samples) / count
    return (
        f"{kept.share(kept.good):.0%} of {kept.ended} requests met their objectives (first token "
        f"{kept.share(kept.ttft_met):.0%}, further tokens {kept.share(kept.tpot_met):.0%}; target "
        f"{target:.0%}; {seen.strain}): at {load.rate:.2f} requests/s of {prompt:.0f} uncached "
        f"prompt and {answer:.0f} answer tokens, {split} workers are forecast to keep "
        f"{today.attainment:.0%} (prefill {today.prefill_busy:.0%} busy, "
        f"{1e3 * today.tpot_s:.0f} ms a token), {better} workers {then.attainment:.0%}"
    )
