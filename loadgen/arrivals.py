"""When requests are meant to be sent: schedules drawn once, before the run starts.

An open loop keeps its schedule whatever the server does, so waiting shows as latency instead of
vanishing as a lower rate (no coordinated omission). All schedules start at 0 and have the exact
mean rate, so that two of the same rate differ in burstiness alone.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence


def constant(rate_per_s: float, count: int) -> tuple[float, ...]:
    """`count` send times in seconds, evenly spaced."""
    return _times([1.0] * _checked(rate_per_s, count), rate_per_s)


def poisson(rate_per_s: float, count: int, seed: int) -> tuple[float, ...]:
    """`count` send times, exponential gaps. An infinite rate sends everything at once."""
    chance = random.Random(f"arrivals:{seed}")
    return _times([chance.expovariate(1.0) for _ in range(_checked(rate_per_s, count))], rate_per_s)


def gamma(rate_per_s: float, count: int, cv: float, seed: int) -> tuple[float, ...]:
    """Gamma gaps with coefficient of variation `cv`: 1 is Poisson, above 1 comes in bursts."""
    if not 0 < cv <= 1_000:
        raise ValueError(f"cv is {cv}; expected more than 0 and at most 1000")
    chance = random.Random(f"arrivals:{seed}")
    shape = 1 / cv**2
    gaps = [chance.gammavariate(shape, 1.0) for _ in range(_checked(rate_per_s, count))]
    return _times(gaps if sum(gaps) > 0 else [1.0] * count, rate_per_s)


def on_off(
    rate_per_s: float,
    count: int,
    on_s: float,
    off_s: float,
    seed: int,
    on_factor: float | None = None,
) -> tuple[float, ...]:
    """Poisson at two rates in turn; `rate_per_s` is the mean over both. While on it is
    `on_factor` times the mean; without a factor nothing at all is sent while off."""
    if not (on_s > 0 and off_s >= 0 and math.isfinite(on_s + off_s)):
        raise ValueError("on must last longer than 0 seconds, off at least 0")
    _checked(rate_per_s, count)
    if rate_per_s == math.inf:
        return (0.0,) * count
    most = (on_s + off_s) / on_s
    factor = most if on_factor is None else on_factor
    if not 0 < factor <= most * (1 + 1e-9):
        raise ValueError(f"the factor while on is {factor:g}; more than {most:g} leaves none off")
    in_on = factor * on_s / (on_s + off_s)
    whole_s = on_s + off_s

    def at(expected: float) -> float:
        """When so many requests are expected to have come."""
        turns, rest = divmod(expected / rate_per_s, whole_s)
        if rest <= in_on * whole_s or off_s == 0:
            return turns * whole_s + rest / factor
        slow = (1 - in_on) * whole_s / off_s
        return turns * whole_s + on_s + (rest - in_on * whole_s) / slow

    return tuple(at(moment * rate_per_s) for moment in poisson(rate_per_s, count, seed))


def ramp(
    first_per_s: float, last_per_s: float, count: int, seed: int, exponential: bool = False
) -> tuple[float, ...]:
    """Poisson at a rate that grows (or falls) from the first to the last, so that `count` requests
    come on the way; by equal steps of time, or by equal factors."""
    _checked(first_per_s, count)
    if not (last_per_s > 0 and math.isfinite(first_per_s) and math.isfinite(last_per_s)):
        raise ValueError("a ramp needs finite positive rates")
    change = last_per_s - first_per_s
    if abs(change) < 1e-9 * first_per_s:
        return poisson(first_per_s, count, seed)
    growth = math.log(last_per_s / first_per_s)
    mean = change / growth if exponential else (first_per_s + last_per_s) / 2
    span_s = count / mean

    def at(expected: float) -> float:
        if exponential:
            return span_s / growth * math.log1p(expected * growth / (first_per_s * span_s))
        slope = change / span_s
        return (math.sqrt(first_per_s**2 + 2 * slope * expected) - first_per_s) / slope

    return tuple(at(moment) for moment in poisson(1.0, count, seed))


def scaled(times: Iterable[float], rate_per_s: float) -> tuple[float, ...]:
    """A recorded schedule at another mean rate: its gaps keep their proportions."""
    recorded: Sequence[float] = tuple(times)
    if any(later < earlier for earlier, later in itertools.pairwise(recorded)):
        raise ValueError("a recorded schedule must be sorted")
    count = _checked(rate_per_s, len(recorded))
    if count == 1 or recorded[-1] == recorded[0] or rate_per_s == math.inf:
        return (0.0,) * count
    factor = (count - 1) / rate_per_s / (recorded[-1] - recorded[0])
    return tuple((at_s - recorded[0]) * factor for at_s in recorded)


def _checked(rate_per_s: float, count: int) -> int:
    if count < 1 or not rate_per_s > 0:
        raise ValueError("a schedule needs a positive rate and at least one request")
    return count


def _times(gaps: Sequence[float], rate_per_s: float) -> tuple[float, ...]:
    """Cumulated gaps from 0, scaled so that the mean rate is exact."""
    if rate_per_s == math.inf:
        return (0.0,) * len(gaps)
    scale = len(gaps) / rate_per_s / sum(gaps)
    times: list[float] = []
    now = 0.0
    for gap in gaps:
        times.append(now)
        now += gap * scale
    return tuple(times)
