"""What a claim is, how it is judged, and what all claims are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from loadgen import arrivals
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.goodput import CLOSE, Draw, goodput
from loadgen.sim.fleet.prices import Price
from loadgen.workloads.request import Request, Workload, build


class Verdict(StrEnum):
    """Of one line. `Short` where the figure was not reached, and `missing` says what may be why."""

    HELD = "held"
    BEATEN = "beaten"
    SHORT = "short"


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of a claim."""

    name: str
    published: str
    simulated: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Setting:
    """What every claim is given."""

    scale: float = 1.0
    """Of the number of requests."""
    data: Path = Path("../shared/data")
    note: Callable[[str], None] = field(default=lambda _: None)
    """Told what is under way."""

    def count(self, requests: int) -> int:
        return max(24, round(requests * self.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`measure` yields its lines one by one. Raises WorkloadError where data is absent."""

    name: str
    source: str
    inputs: str
    missing: str
    measure: Callable[[Setting], Iterator[Line]]


def near(value: float, published: float, within: float) -> Verdict:
    """A figure that is to be met, not surpassed: within a share of the published one."""
    return Verdict.HELD if abs(value / published - 1) <= within else Verdict.SHORT


def inside(value: float, low: float, high: float, within: float = 0.05) -> Verdict:
    """More is better: `low` to `high`, with some slack below."""
    if value > high:
        return Verdict.BEATEN
    return Verdict.HELD if value >= low * (1 - within) else Verdict.SHORT


def equal(found: object, published: object) -> Verdict:
    """A choice."""
    return Verdict.HELD if found == published else Verdict.SHORT


# -- what claims have in common ----------------------------------------------------------------

FAST: Link = Link(bytes_per_s=300e9, setup_s=0.0002)
"""NVLink between the GPUs of an A100 host, one direction."""
WHOLE_TOKENS = 1 << 16
"""Budget of a step that takes whole prompts, as servers before chunked prefill did."""


def pair(prefill: Price, decode: Price, prefills: int, decodes: int, link: Link = FAST) -> Design:
    """Every request is handed over."""
    return Design(
        prefills=prefills,
        decodes=decodes,
        prefill=prefill,
        decode=decode,
        link=link,
        block_tokens=64,
        route="disaggregated",
    )


def pausing(price: Price, workers: int) -> Design:
    """Servers before chunked prefill: whole prompts, and sequences wait for them."""
    return colocated(replace(price, pauses=True), workers, WHOLE_TOKENS)


def colocated(price: Price, workers: int, step_tokens: int) -> Design:
    """Every worker does both, with such a token budget."""
    return Design(
        prefills=0,
        decodes=workers,
        prefill=price,
        decode=price,
        link=FAST,
        block_tokens=64,
        step_tokens=step_tokens,
        chunk_tokens=max(2_048, step_tokens),
        route="colocated",
    )


def lengths(count: int, prompt: int, output: int, seed: int = 1) -> Draw:
    """Equal requests, Poisson arrivals; one draw of gaps for all rates."""

    def draw(rate_per_s: float) -> Workload:
        times = arrivals.poisson(rate_per_s, count, seed)
        rows = (Request(at_s=at_s, prompt_tokens=prompt, output_tokens=output) for at_s in times)
        return build(f"{prompt} in, {output} out", 64, rows)

    return draw


def per_gpu(
    design: Design, draw: Draw, slo: Slo, first_per_s: float, close: float = CLOSE
) -> float:
    """Goodput per GPU at 90 % joint attainment."""
    return goodput(design, draw, slo, 0.9, first_per_s, close=close).per_device
