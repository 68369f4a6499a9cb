"""How much of a load a split of workers would serve within its objectives: queueing by formulas.

Prefill is a queue with as many servers as workers (Pollaczek-Khinchine with Sakasegawa's factor);
decode a fixed point: as many sequences as arrive while one runs, each step as long as they make it.
Colocated workers do both, chunk by chunk. Estimates: good for comparing splits, not as promises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from services.scheduler.core.balance.demand import Load, Sample
from shared import costs
from shared.costs import WorkCosts

_BUSY_MOST: Final = 0.95
_CHUNK_TOKENS: Final = 256
"""Of a step that several short prompts share, or a prompt and running answers where no worker
tells."""
_SPREAD: Final = 0.1
"""Of the logarithm of a step's time around its mean."""
_ROUNDS: Final = 30
_RELIEF: Final = 0.05
"""Of a request that is late, against one that is in time."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """What workers can do, as learnt."""

    prefill: WorkCosts
    decode: WorkCosts
    context_token_s: float
    decode_pages: int
    """Of one worker."""
    block_tokens: int
    step_tokens: int = 0
    """Of one step of a decode worker; 0: nobody tells."""


@dataclass(frozen=True, slots=True)
class Split:
    """Workers by role. No prefill worker: decode workers prefill, chunk by chunk."""

    prefill: int
    decode: int

    @property
    def colocated(self) -> bool:
        return self.prefill == 0

    def __str__(self) -> str:
        if self.colocated:
            return f"{self.decode} colocated"
        return f"{self.prefill} prefill and {self.decode} decode"


@dataclass(frozen=True, slots=True)
class Forecast:
    """Shares of requests, and what they come from."""

    ttft_met: float
    tpot_met: float
    goodput: float
    """Requests per second that meet both."""
    prefill_busy: float
    """Above 1: the queue grows without end."""
    tpot_s: float
    relief: float = 0.0
    """Far beyond its objectives nothing is kept by any split: this still tells which one is less
    late, as the share of the work that is done in its time."""
    rate: float = 0.0

    @property
    def worth(self) -> float:
        """What splits are compared by: goodput, and where there is none, relief."""
        return self.goodput + _RELIEF * self.rate * self.relief

    @property
    def attainment(self) -> float:
        return self.ttft_met * self.tpot_met


def forecast(load: Load, split: Split, speeds: Speeds) -> Forecast:
    """Total: no workers keep nothing, no load is kept whole."""
    if not load.samples or load.rate <= 0.0:
        return Forecast(1.0, 1.0, 0.0, 0.0, 0.0)
    if split.decode <= 0:
        return Forecast(0.0, 0.0, 0.0, math.inf, math.inf)
    if split.colocated:
        return _colocated(load, split.decode, speeds)
    alone = [_prefill_s(speeds.prefill, s) for s in load.samples]
    shared = [_shared_s(speeds.prefill, s) for s in load.samples]
    busy = load.rate * _mean(shared) / split.prefill
    ttft_met = _in_time(load.samples, alone, busy, split.prefill)
    tpot_s, served = _decode(load, split.decode, speeds, 0.0, 0.0)
    return _judged(load, ttft_met * served, tpot_s, busy, served)


def _colocated(load: Load, workers: int, speeds: Speeds) -> Forecast:
    """Steps carry a chunk of a prompt and a token of every running answer. They slow one another:
    the fixed point is found by iteration."""
    chunk = speeds.step_tokens or _CHUNK_TOKENS
    each = [max(1, math.ceil(s.new_tokens / chunk)) for s in load.samples]
    whole = [
        costs.chunked_prefill_s(speeds.decode, s.new_tokens, s.cached_tokens, chunk)
        for s in load.samples
    ]
    step_s = _step_s(speeds, 1.0, 0.0)
    taking, busy, chunk_s = whole, 0.0, 0.0
    tpot_s, served = step_s, 1.0
    for _ in range(_ROUNDS):
        taking = [max(w, k * step_s) for w, k in zip(whole, each, strict=True)]
        busy = load.rate * _mean(taking) / workers
        chunk_s = sum(taking) / sum(each)
        tpot_s, served = _decode(load, workers, speeds, min(busy, _BUSY_MOST), chunk_s)
        before_s, step_s = step_s, (step_s + min(tpot_s, 10 * chunk_s)) / 2
        if abs(step_s - before_s) < 1e-6:
            break
    ttft_met = _in_time(load.samples, taking, busy, workers)
    return _judged(load, ttft_met * served, tpot_s, busy, served)


def _judged(load: Load, ttft_met: float, tpot_s: float, busy: float, served: float) -> Forecast:
    tpot_met = _mean([_tpot_met(sample, tpot_s) for sample in load.samples])
    pace = _mean([min(1.0, sample.tpot_slo_s / tpot_s) for sample in load.samples])
    return Forecast(
        ttft_met=ttft_met,
        tpot_met=tpot_met,
        goodput=load.rate * ttft_met * tpot_met,
        prefill_busy=busy,
        tpot_s=tpot_s,
        relief=min(1.0, 1.0 / busy) * served * pace if busy > 0.0 else served * pace,
        rate=load.rate,
    )


def _in_time(samples: tuple[Sample, ...], takes: list[float], busy: float, servers: int) -> float:
    """Share of requests whose wait and own work fit into their objective. Beyond its capacity a
    queue is late for good: the share falls with what it cannot serve."""
    rho = min(busy, _BUSY_MOST)
    mean, square = _mean(takes), _mean([s * s for s in takes])
    waits = rho ** (math.sqrt(2.0 * (servers + 1)) - 1.0)
    wait_s = waits * (square / (2.0 * mean)) / (servers * (1.0 - rho)) if mean > 0.0 else 0.0
    met = 0.0
    for sample, own_s in zip(samples, takes, strict=True):
        slack_s = sample.ttft_slo_s - own_s
        if slack_s >= 0.0:
            late = waits * math.exp(-slack_s * waits / wait_s) if wait_s > 0.0 else 0.0
            met += 1.0 - late
    return met / len(samples) * (rho / busy if busy > rho else 1.0)


def _decode(
    load: Load, workers: int, speeds: Speeds, prefilling: float, chunk_s: float
) -> tuple[float, float]:
    """(seconds per token, share of the load that finds pages) of each decode worker, when it
    spends the share `prefilling` of its time in steps of `chunk_s`."""
    answers = [sample.answer_tokens for sample in load.samples]
    total = sum(answers)
    context = sum(
        a * (s.new_tokens + s.cached_tokens + a / 2)
        for a, s in zip(answers, load.samples, strict=True)
    )
    context_tokens = context / total
    tokens_per_s = load.rate * total / len(answers) / workers
    room = speeds.decode_pages * speeds.block_tokens / max(1.0, context_tokens)
    most = max(1.0, room)
    sequences = 1.0
    for _ in range(4 * _ROUNDS):
        step_s = _step_s(speeds, sequences, context_tokens)
        rate = (1.0 - prefilling) / step_s + (prefilling / chunk_s if chunk_s > 0.0 else 0.0)
        wanted = min(most, max(1.0, tokens_per_s / rate))
        if abs(wanted - sequences) < 1e-3:
            break
        sequences = wanted
    capacity = sequences * rate
    served = 1.0 if sequences < most else min(1.0, capacity / tokens_per_s)
    return 1.0 / rate, served


def _step_s(speeds: Speeds, sequences: float, context_tokens: float) -> float:
    further_s = speeds.decode.decode_sequence_s * max(0.0, sequences - 1.0)
    seconds = speeds.decode.decode_step_s + further_s
    return max(1e-9, seconds + speeds.context_token_s * sequences * context_tokens)


def _prefill_s(speed: WorkCosts, sample: Sample) -> float:
    return costs.prefill_s(speed, sample.new_tokens, sample.cached_tokens)


def _shared_s(speed: WorkCosts, sample: Sample) -> float:
    """What a prompt costs a busy worker: short ones share the fixed part of a step."""
    share = min(1.0, sample.new_tokens / _CHUNK_TOKENS)
    return _prefill_s(speed, sample) - (1.0 - share) * speed.step_s


def _tpot_met(sample: Sample, tpot_s: float) -> float:
    """P(the mean step of an answer is within its objective): normal in its logarithm."""
    if sample.answer_tokens <= 1:
        return 1.0
    if tpot_s <= 0.0 or sample.tpot_slo_s <= 0.0:
        return 1.0 if tpot_s <= 0.0 else 0.0
    return 0.5 * math.erfc(math.log(tpot_s / sample.tpot_slo_s) / (_SPREAD * math.sqrt(2.0)))


def _mean(found: list[float]) -> float:
    return sum(found) / len(found)
