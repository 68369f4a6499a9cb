"""Which fleet for a model, a pool of GPUs, a workload and objectives: disaggregate or not, how.

DistServe's two searches (OSDI 2024, algorithms 1 and 2: phases apart, pairs within a node), then
Baton's own: the whole pool as XpYd around the phases' ratio, and colocated under several budgets,
each measured as a fleet of live cores with transfers, memory and back-pressure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from loadgen.sim.fleet.design import Design, DesignError, Link
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.goodput import Draw, Goodput, goodput
from loadgen.sim.fleet.prices import Price, free
from loadgen.sim.fleet.roofline import parallel
from loadgen.spread import spread

BUDGETS: Final = (256, 512, 1_024, 2_048)
"""Token budgets of a colocated step."""
_LOOSE_S: Final = 1e6
_ROOM: Final = 1 << 24
_AROUND: Final = 1
"""Decode workers more or fewer than the phases' ratio asks for."""

Shape = tuple[int, int]
"""Of a worker: GPUs that share each layer, and stages of the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. `price_of` gives a worker of so many GPUs a stage and so many stages, or
    DesignError."""

    gpus: int
    node_gpus: int
    link: Link
    slo: Slo
    draw: Draw
    price_of: Callable[[int, int], Price]
    most_stages: int = 2
    """Of a pipeline; 1: none."""
    share: float = 0.9
    block_tokens: int = 64
    first_per_s: float = 1.0
    apart: bool = True
    """False where requests follow up on others: then every token has to be simulated."""
    stride: int = 1
    """Output tokens that a step of decode alone stands for."""
    jobs: int = 1
    """Processes: fleets are measured side by side."""
    search: Callable[[Design, Draw, Slo, float, float], Goodput] = goodput

    def goodput(self, design: Design, slo: Slo | None = None) -> Goodput:
        """Of one fleet, under other objectives where they are given."""
        return self.search(design, self.draw, slo or self.slo, self.share, self.first_per_s)


@dataclass(frozen=True, slots=True)
class Choice:
    """One fleet and what it reaches."""

    name: str
    design: Design
    found: Goodput
    replicas: int = 1
    """So many of it fit into the pool."""

    @property
    def total_per_s(self) -> float:
        return self.found.rate_per_s * self.replicas


@dataclass(frozen=True, slots=True)
class Plan:
    """Best first; with a sentence why."""

    choices: tuple[Choice, ...]
    phases: tuple[Choice, ...]
    """DistServe's algorithm 1: each phase alone, best first within a phase."""
    pairs: tuple[Choice, ...]
    """Its algorithm 2: one prefill and one decode worker within a node."""
    why: str


def search(question: Question, note: Callable[[str], None] = lambda _: None) -> Plan:
    """Raises DesignError that says which limit binds where nothing fits."""
    shapes = list(_shapes(question))
    phases = alone(question, shapes, note)
    smallest = min(tp * stages for tp, stages in shapes)
    best_p = _best(phases, "prefill", question.gpus - smallest)
    best_d = _best(phases, "decode", question.gpus - best_p.found.devices)
    pairs = tuple(spread(list(_pairs(question, shapes, note)), question.jobs))
    # A pipeline is tried for both phases together where it is the best for one of them.
    whole = [s for s in shapes if s[1] == 1 or s in (_shape(best_p), _shape(best_d))]
    designs = [
        *_mixes(question, best_p, best_d),
        *(_colocated(question, shape, budget) for shape in whole for budget in BUDGETS),
    ]
    measures = [partial(_measure, question, design, note) for design in designs]
    choices = list(spread(measures, question.jobs))
    choices.sort(key=lambda choice: choice.total_per_s, reverse=True)
    if choices[0].total_per_s <= 0.0:
        raise DesignError(_binding(question, phases))
    return Plan(tuple(choices), phases, pairs, _why(choices))


def alone(
    question: Question, shapes: Sequence[Shape], note: Callable[[str], None]
) -> tuple[Choice, ...]:
    """Each phase by itself, for each shape of a worker."""
    return tuple(spread(list(_phases(question, shapes, note)), question.jobs))


def name_of(design: Design) -> str:
    """`2p(tp1)3d(tp2pp2)`, or `4c(tp1)@512` for colocated with its budget."""
    decode = _parallel(design.decode)
    if not design.prefills:
        return f"{design.decodes}c({decode})@{design.budget_tokens}"
    return f"{design.prefills}p({_parallel(design.prefill)}){design.decodes}d({decode})"


def _parallel(price: Price) -> str:
    return parallel(price.devices // price.stages, price.stages)


def _shape(choice: Choice) -> Shape:
    """Of the worker that was measured alone: the other one has no devices."""
    design = choice.design
    price = design.prefill if design.prefill.devices else design.decode
    return price.devices // price.stages, price.stages


# -- candidates --------------------------------------------------------------------------------


def _shapes(question: Question) -> Iterator[Shape]:
    """Workers that hold the model, each stage within a node. Raises DesignError where none does."""
    reasons, found = [], False
    stages = 1
    while stages <= min(question.most_stages, question.gpus):
        tp = 1
        while tp <= question.node_gpus and tp * stages <= question.gpus:
            try:
                question.price_of(tp, stages)
                found = True
                yield tp, stages
            except DesignError as error:
                reasons.append(str(error))
            tp *= 2
        stages *= 2
    if not found:
        raise DesignError(reasons[-1] if reasons else f"{question.gpus} GPUs are too few")


def _phases(
    question: Question, shapes: Sequence[Shape], note: Callable[[str], None]
) -> Iterator[Callable[[], Choice]]:
    """Each phase alone: the other one is free, the link too, and only its own objective counts."""
    for shape in shapes:
        own = question.price_of(*shape)
        nothing = free(own)
        for name, prefill, decode, slo in (
            ("prefill", own, nothing, Slo(question.slo.ttft_s, _LOOSE_S)),
            ("decode", nothing, own, Slo(_LOOSE_S, question.slo.tpot_s)),
        ):
            design = _pair(question, prefill, decode)
            design = replace(design, link=Link(bytes_per_s=1e15, setup_s=0.0))
            if name == "prefill" and question.apart:
                # Steps that take no time need not be told from each other.
                design = replace(design, stride=_ROOM)
            elif question.apart:
                design = replace(design, stride=question.stride)
            yield partial(_alone, question, f"{name}:{parallel(*shape)}", design, slo, note)


def _alone(
    question: Question, name: str, design: Design, slo: Slo, note: Callable[[str], None]
) -> Choice:
    found = replace(question.goodput(design, slo), devices=design.devices)
    note(f"{name} alone: {found.per_device:.2f} per GPU")
    return Choice(name, design, found)


def _pairs(
    question: Question, shapes: Sequence[Shape], note: Callable[[str], None]
) -> Iterator[Callable[[], Choice]]:
    """One worker of each phase, a stage of both within a node: equally many stages, so that pages
    never leave it."""
    for prefill_tp, stages in shapes:
        for decode_tp in [tp for tp, others in shapes if others == stages]:
            both = prefill_tp + decode_tp
            if both > question.node_gpus or both * stages > question.gpus:
                continue
            prefill, decode = (question.price_of(tp, stages) for tp in (prefill_tp, decode_tp))
            yield partial(_measure, question, _pair(question, prefill, decode), note)


def _mixes(question: Question, best_p: Choice, best_d: Choice) -> Iterator[Design]:
    """The pool as XpYd near the ratio at which both phases are full."""
    p, d = best_p.found, best_d.found
    if min(p.rate_per_s, d.rate_per_s) <= 0.0:
        return
    ideal = p.rate_per_s / d.rate_per_s
    seen: set[tuple[int, int]] = set()
    for prefills in range(1, question.gpus // p.devices + 1):
        room = (question.gpus - prefills * p.devices) // d.devices
        wanted = max(1, round(prefills * ideal))
        for decodes in range(wanted - _AROUND, wanted + _AROUND + 1):
            whole = prefills * p.devices + decodes * d.devices
            full = whole > question.gpus - min(p.devices, d.devices)
            if not (1 <= decodes <= room and full) or (prefills, decodes) in seen:
                continue
            seen.add((prefills, decodes))
            pair = _pair(question, best_p.design.prefill, best_d.design.decode)
            yield replace(pair, prefills=prefills, decodes=decodes)


def _colocated(question: Question, shape: Shape, budget: int) -> Design:
    own = question.price_of(*shape)
    pair = _pair(question, own, own)
    workers = question.gpus // own.devices
    return replace(pair, prefills=0, decodes=workers, step_tokens=budget, route="colocated")


def _pair(question: Question, prefill: Price, decode: Price) -> Design:
    return Design(
        prefills=1,
        decodes=1,
        prefill=prefill,
        decode=decode,
        link=question.link,
        block_tokens=question.block_tokens,
        route="disaggregated",
    )


# -- measuring and reasons ---------------------------------------------------------------------


def _measure(question: Question, design: Design, note: Callable[[str], None]) -> Choice:
    try:
        found = question.goodput(design)
    except DesignError as error:
        note(f"{name_of(design)}: {error}")
        found = Goodput(0.0, design.devices, ())
    choice = Choice(name_of(design), design, found, question.gpus // design.devices)
    note(f"{choice.name}: {found.per_device:.2f} per GPU, {choice.total_per_s:.2f} in all")
    return choice


def _best(phases: Sequence[Choice], phase: str, room: int) -> Choice:
    """Most per GPU among the workers of a phase that leave room for one of the other phase; the
    smallest where none does."""
    ours = [choice for choice in phases if choice.name.startswith(phase)]
    fitting = [choice for choice in ours if choice.found.devices <= room] or ours[:1]
    return max(fitting, key=lambda choice: choice.found.per_device)


def _binding(question: Question, phases: Sequence[Choice]) -> str:
    """Which objective no worker meets even at rest."""
    for phase, slo_s in (("prefill", question.slo.ttft_s), ("decode", question.slo.tpot_s)):
        ours = [choice for choice in phases if choice.name.startswith(phase)]
        if all(choice.found.rate_per_s <= 0.0 for choice in ours):
            what = "TTFT" if phase == "prefill" else "TPOT"
            return f"no {phase} worker meets {what} {slo_s * 1000:.0f} ms even at the lowest rate"
    return "no fleet of this pool meets both objectives: transfers or memory bind"


def _why(choices: Sequence[Choice]) -> str:
    """One sentence."""
    best, rest = choices[0], choices[1:]
    split = bool(best.design.prefills)
    other = next((c for c in rest if bool(c.design.prefills) != split), None)
    verb = "Disaggregate" if split else "Do not disaggregate"
    text = f"{verb}: {best.name} serves {best.total_per_s:.2f} requests/s within both objectives"
    if other is None:
        return text + "."
    if other.total_per_s <= 0.0:
        return f"{text}; the best {'colocated' if split else 'disaggregated'} fleet serves none."
    gain = best.total_per_s / other.total_per_s - 1
    return f"{text}, {gain:.0%} more than {other.name} ({other.total_per_s:.2f})."


def break_even_link(
    question: Question, split: Design, colocated_per_s: float, lowest: float = 1e7
) -> float | None:
    """Bytes/s at which the disaggregated fleet serves as much as the colocated one; None where it
    never does, 0 where it does on any link. Bisects to a factor of 1.3."""

    def serves(bytes_per_s: float) -> bool:
        design = replace(split, link=replace(split.link, bytes_per_s=bytes_per_s))
        found = question.goodput(design)
        return found.rate_per_s >= colocated_per_s

    low, high = lowest, max(lowest * 2, split.link.bytes_per_s * 16)
    if not serves(high):
        return None
    if serves(low):
        return 0.0
    while high / low > 1.3:
        middle = math.sqrt(low * high)
        if serves(middle):
            high = middle
        else:
            low = middle
    return high
