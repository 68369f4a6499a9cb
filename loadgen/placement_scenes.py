"""The workloads on which `sim_placement` compares policies, and the fleets that serve them.

Rates follow from the fleet, not from results: busy enough that placement matters, never so much
that nobody keeps up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

from loadgen import arrivals
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.prices import TOY, DecodePrice
from loadgen.workloads.catalogue import Wish, at_rate, load
from loadgen.workloads.prefixes import Family, families, preble
from loadgen.workloads.request import Request, Workload, build

_GIGA: Final = 1e9
_USUAL: Final = Slo(2.0, 1.0)
_MOST_ANSWER: Final = 16
"""Tokens. Longer answers are cut: decode is out of the way."""
_LINK_SHARE: Final = 0.7
"""Of the links that handing over all pages may take."""
_COLD_SHARE: Final = 0.05
_WHOLE: Final = 1 << 20
AZURE: Final = "azure"
"""Arrival: the gaps of the public trace of code completions, at another mean rate."""
Count = Callable[[int], int]
COLD: Final = "cold"
"""Tenant of requests that share nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One row of the table: a workload at a rate on a fleet. Objectives in seconds."""

    name: str
    wish: Wish
    workers: int
    kv_tokens: int
    decodes: int = 2
    link_gb: float = 20.0
    block_tokens: int = 64
    slo: Slo = _USUAL
    step_s: float = 0.0
    draws: int = 3
    """Arrivals and prompts are drawn anew so often; figures are means of all draws."""

    def drawn(self, number: int) -> Scene:
        """The same with other dice."""
        return replace(self, wish=replace(self.wish, seed=self.wish.seed + number))

    def design(self, policy: str) -> Design:
        """Equal prefill workers by the toy model; decode is out of the way, as in the papers."""
        price = replace(TOY, step_s=self.step_s, kv_tokens=self.kv_tokens)
        decode = replace(TOY, decode=DecodePrice(0.006, 0.0, 0.0), kv_tokens=1 << 24)
        return Design(
            prefills=self.workers,
            decodes=self.decodes,
            prefill=price,
            decode=decode,
            link=Link(bytes_per_s=self.link_gb * _GIGA),
            block_tokens=self.block_tokens,
            policy=policy,
            split="always",
            heartbeat_s=0.5,
            ttft_slo_s=self.slo.ttft_s,
            tpot_slo_s=self.slo.tpot_s,
        )

    def workload(self, data: Path) -> Workload:
        """Its requests. Raises WorkloadError."""
        wish = self.wish
        if wish.arrival == AZURE:
            times = azure_times(wish, data)
            found = preble(wish.name.removeprefix("preble:"), times, wish.seed)
        elif wish.name.startswith("mooncake:"):
            found = stretch(wish, data)
        else:
            found = under_heat(wish) if wish.name == COLD else load(wish, data)
        short = (
            replace(row, output_tokens=min(row.output_tokens, _MOST_ANSWER))
            for row in found.requests
        )
        return build(found.name, found.block_tokens, short)


def scenes(scale: float) -> Iterator[Scene]:
    """At a quarter of all, which is the default: eight seconds of each and more."""

    def of(count: int) -> int:
        return max(60, round(count * scale))

    return chain(_preble(of), _mooncake(of), _mixes(of), _prefixes(of))


def _preble(of: Count) -> Iterator[Scene]:
    """The fleet computes at 0.7 to 0.9 of what recomputing everything would need."""
    for kind, count, rate, kv_tokens in (
        ("toolbench", 1_600, 40.0, 120_000),
        ("embodied", 1_400, 34.0, 120_000),
        ("programming", 800, 18.0, 250_000),
        ("videoqa", 600, 7.0, 500_000),
        ("loogle", 320, 2.6, 900_000),
    ):
        for arrival, what in (("poisson", ""), (AZURE, ", Azure arrivals")):
            yield Scene(
                name=f"preble {kind}{what}",
                wish=Wish(f"preble:{kind}", of(count), rate, arrival, seed=1),
                workers=4,
                kv_tokens=kv_tokens,
                block_tokens=256 if kind in ("videoqa", "loogle") else 64,
                draws=20 if arrival == AZURE else 10,
            )


def _mooncake(of: Count) -> Iterator[Scene]:
    """Every page is handed over, so a slow link bounds the rate: at most 0.7 of what all links
    carry. As many decode workers as prefill ones, so that no single card is in the way."""
    for trace, rate, tokens in (("conversation", 17.0, 12_035), ("synthetic", 15.6, 15_325)):
        for link_gb in (1.0, 3.0, 20.0):
            handed_gb = tokens * TOY.kv_token_bytes / _GIGA
            held_back = min(rate, _LINK_SHARE * 10 * link_gb / handed_gb)
            yield Scene(
                name=f"mooncake {trace}, {link_gb:g} GB/s, {held_back:.1f}/s",
                wish=Wish(f"mooncake:{trace}", of(900), held_back),
                workers=10,
                decodes=10,
                kv_tokens=3_000_000,
                link_gb=link_gb,
                block_tokens=512,
                slo=Slo(5.0, 1.0),
                draws=3 if link_gb > 3.0 else 10,
            )


def _mixes(of: Count) -> Iterator[Scene]:
    for model, rate in (("m-large", 60.0), ("deepseek-r1", 40.0)):
        wish = Wish(f"servegen:{model}", of(1_600), rate)
        yield Scene(name=f"servegen {model}", wish=wish, workers=4, kv_tokens=200_000)


def _prefixes(of: Count) -> Iterator[Scene]:
    yield Scene(
        name="zipf 1.1 x 40 prefixes",
        wish=Wish("zipf", of(4_000), 75.0, seed=2),
        workers=8,
        kv_tokens=60_000,
        step_s=0.005,
        draws=2,
    )
    yield Scene(
        name="one hot prefix",
        wish=Wish("hot", of(8_000), 200.0, seed=2),
        workers=4,
        kv_tokens=320_000,
        step_s=0.005,
        draws=2,
    )
    yield Scene(
        name="96 groups",
        wish=Wish("groups96", of(6_000), 60.0, seed=2),
        workers=4,
        kv_tokens=65_536,
        block_tokens=16,
        step_s=0.005,
        draws=2,
    )
    yield Scene(
        name="cold under 95 % hot",
        wish=Wish(COLD, of(6_000), 180.0, seed=2),
        workers=4,
        kv_tokens=320_000,
        step_s=0.005,
        draws=2,
    )


def azure_times(wish: Wish, data: Path) -> tuple[float, ...]:
    """The `seed`-th stretch of the trace, from its first arrival on. Raises WorkloadError."""
    trace = [row.at_s for row in load(Wish("azure:code", _WHOLE), data).requests]
    begin = wish.seed * wish.count % max(1, len(trace) - wish.count)
    stretch = trace[begin : begin + wish.count]
    return arrivals.scaled([at_s - stretch[0] for at_s in stretch], wish.rate_per_s)


def stretch(wish: Wish, data: Path) -> Workload:
    """The `seed`-th stretch of a recorded trace, at another mean rate. Raises WorkloadError."""
    begin = wish.seed * wish.count
    trace = load(replace(wish, count=begin + wish.count, rate_per_s=0.0, seed=0), data)
    rows = trace.requests[begin:]
    moved = [replace(row, at_s=row.at_s - rows[0].at_s) for row in rows]
    return at_rate(build(trace.name, trace.block_tokens, moved), wish.rate_per_s)


def under_heat(wish: Wish) -> Workload:
    """Nineteen of twenty requests begin with one of eight prefixes, the rest share nothing with
    anyone; all are equally long."""
    times = arrivals.poisson(wish.rate_per_s, wish.count, wish.seed)
    hot = families("hot", Family(8, 2_000, 200, 16), times, wish.seed)
    chance = random.Random(f"cold:{wish.seed}")

    def row(request: Request) -> Request:
        if chance.random() >= _COLD_SHARE:
            return request
        return replace(request, blocks=(), session=None, tenant=COLD)

    return build("cold under heat", hot.block_tokens, map(row, hot.requests))
