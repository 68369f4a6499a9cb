"""Where two phases on their own GPUs lose, and whether Baton's own choice stays on the better side.

At each point: colocated with chunks under several budgets, every static split of the pool with all
requests handed over, and the same pools with Baton's conditional path (`auto`): once on split
fleets alone, whose prefill workers stay prefill workers whatever comes, and once with the roles
that `sim plan` would give them, all of them decode included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from loadgen import arrivals
from loadgen.sim.fleet import plan, roofline
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.goodput import Draw
from loadgen.tables.claim import Claim, Line, Setting, Verdict, colocated, pair, per_gpu
from loadgen.workloads.request import Request, Workload, build

_BUDGETS: Final = (256, 512, 2_048)
_FLOOR: Final = 0.98
_CLOSE: Final = 0.01
"""Of a rate: the search must tell more than the bar asks."""


@dataclass(frozen=True, slots=True)
class Place:
    """One point of the sweep."""

    name: str
    gpus: int = 4
    prompt: int = 1_024
    output: int = 64
    link_gb: float = 25.0
    cv: float = 1.0
    """Of the gaps between arrivals: 1 is Poisson."""


PLACES: Final = (
    Place("usual"),
    Place("short prompts", prompt=128),
    Place("long answers", prompt=256, output=192),
    Place("long prompts", prompt=4_096, output=32),
    Place("slow link", link_gb=0.5),
    Place("two GPUs", gpus=2),
    Place("bursts", cv=4.0),
)
_PRICE: Final = roofline.find("llama-3-8b:a100:tp1")
_TTFT_S: Final = 0.4
_PER_TOKEN_S: Final = 0.0002
"""Long prompts are granted so much more."""
_TPOT_S: Final = 0.03


def slo(place: Place) -> Slo:
    """The same for all fleets at one point."""
    return Slo(_TTFT_S + place.prompt * _PER_TOKEN_S, _TPOT_S)


def draw(place: Place, count: int) -> Draw:
    """Equal lengths, gamma gaps."""

    def at(rate_per_s: float) -> Workload:
        times = arrivals.gamma(rate_per_s, count, place.cv, seed=1)
        size = (place.prompt, place.output)
        rows = (Request(at_s=t, prompt_tokens=size[0], output_tokens=size[1]) for t in times)
        return build(place.name, 64, rows)

    return at


def chunked(place: Place) -> list[Design]:
    return [colocated(_PRICE, place.gpus, budget) for budget in _BUDGETS]


def splits(place: Place) -> list[Design]:
    """All requests handed over."""
    link = Link(bytes_per_s=place.link_gb * 1e9)
    counts = range(1, place.gpus)
    return [pair(_PRICE, _PRICE, count, place.gpus - count, link) for count in counts]


def conditional(place: Place, design: Design) -> Design:
    """The same fleet under Baton's own rule for each request, told of the objectives as a live one
    is: its decode workers choose their budget by them."""
    goal = slo(place)
    return replace(
        design,
        route="auto",
        split="baton_cost",
        step_tokens=0,
        ttft_slo_s=goal.ttft_s,
        tpot_slo_s=goal.tpot_s,
    )


def _loses(setting: Setting) -> Iterator[Line]:
    worst = {"roles fixed": 9.0, "roles planned": 9.0}
    for place in PLACES:
        reach = _Reach(setting, place, setting.count(150))
        # Without prefill workers, the conditional path is the colocated fleet.
        whole = max(reach(design) for design in chunked(place))
        split = max(reach(design) for design in splits(place))
        auto = max(reach(conditional(place, design)) for design in splits(place))
        side = "P/D" if split > whole else "colocated"
        figure = f"{place.name}: {side} wins, {split:.2f} / {whole:.2f}"
        for roles, own in (("roles fixed", auto), ("roles planned", max(auto, whole))):
            share = own / max(whole, split, 1e-9)
            worst[roles] = min(worst[roles], share)
            yield Line(f"{figure}, {roles}", f">= {_FLOOR}", f"{share:.2f}", _verdict(share))
    for roles, share in worst.items():
        yield Line(f"the worst point, {roles}", f">= {_FLOOR}", f"{share:.2f}", _verdict(share))


def _verdict(share: float) -> Verdict:
    return Verdict.HELD if share >= _FLOOR else Verdict.SHORT


@dataclass(frozen=True, slots=True)
class _Reach:
    """Goodput per GPU at one point."""

    setting: Setting
    place: Place
    count: int

    def __call__(self, design: Design) -> float:
        self.setting.note(f"{self.place.name}: {plan.name_of(design)} {design.route}")
        first = 4.0 * design.devices
        return per_gpu(design, draw(self.place, self.count), slo(self.place), first, _CLOSE)


CLAIMS: Final = (
    Claim(
        name="when P/D loses",
        source="the bar of this project: at least 0.98 of the better of colocated chunked and the "
        "best static split, everywhere",
        inputs="Llama-3-8B on A100 by roofline, 2 or 4 GPUs, equal lengths, goodput per GPU of the "
        "best split / the best budget; the conditional path on the best split, and with the roles "
        "that the plan gives, which may be decode for all",
        missing="mixed lengths and reuse: with equal requests nothing tells one from another; with "
        "roles fixed, GPUs that only compute prompts are lost where answers are the work",
        measure=_loses,
    ),
)
