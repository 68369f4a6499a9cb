"""When requests are meant to be sent: schedules drawn once, before the run starts.

An open loop keeps its schedule whatever the server does, so waiting shows as latency instead of
vanishing as a lower rate (no coordinated omission).
"""

from __future__ import annotations

import random


def poisson(rate_per_s: float, count: int, seed: int) -> tuple[float, ...]:
    """`count` intended send times in seconds from the start, exponential gaps, scaled so that
    the mean rate is exact. An infinite rate sends everything at once."""
    if count < 1 or rate_per_s <= 0:
        raise ValueError("a schedule needs a positive rate and at least one request")
    if rate_per_s == float("inf"):
        return (0.0,) * count
    chance = random.Random(f"arrivals:{seed}")
    gaps = [chance.expovariate(1.0) for _ in range(count)]
    scale = count / rate_per_s / sum(gaps)
    times: list[float] = []
    now = 0.0
    for gap in gaps:
        times.append(now)
        now += gap * scale
    return tuple(times)
