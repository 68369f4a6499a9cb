"""The search for a fleet, with goodput by formula: candidates, order, reasons, break-even."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.sim.fleet.design import Design, DesignError, Link
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.goodput import Draw, Goodput
from loadgen.sim.fleet.plan import Question, break_even_link, search
from loadgen.sim.fleet.prices import PRICES, Price
from loadgen.workloads.request import Request, Workload, build

_SLO = Slo(0.4, 0.04)
_PREFILL_PER_S, _DECODE_PER_S, _COLOCATED_PER_S = 5.6, 10.0, 1.6


def _draw(rate_per_s: float) -> Workload:
    return build("even", 64, [Request(at_s=0.0, prompt_tokens=512, output_tokens=64)])


def _lecture(design: Design, draw: Draw, slo: Slo, share: float, first_per_s: float) -> Goodput:
    """A prefill worker serves 5.6/s, a decode worker 10/s, a colocated one 1.6/s; a link of less
    than 4 GB/s for each prefill worker holds decode up."""
    if not design.prefills:
        return Goodput(_COLOCATED_PER_S * design.decodes, design.devices, ())
    prefill = _PREFILL_PER_S * design.prefills if design.prefill.devices else 1e3
    decode = _DECODE_PER_S * design.decodes if design.decode.devices else 1e3
    moved = design.link.bytes_per_s / 4e9 * _PREFILL_PER_S * design.prefills
    return Goodput(min(prefill, decode, moved), design.devices, ())


def _one_gpu(tp: int, stages: int) -> Price:
    if tp * stages > 1:
        raise DesignError("the lecture has one GPU a worker")
    return PRICES["opt-13b:tp1"]


_QUESTION = Question(
    gpus=3,
    node_gpus=8,
    link=Link(bytes_per_s=25e9),
    slo=_SLO,
    draw=_draw,
    price_of=_one_gpu,
    search=_lecture,
)


def test_two_prefill_and_one_decode_beat_three_colocated() -> None:
    """The worked example: 2P1D gives min(2*5.6, 10)/3 = 3.3 requests/s per GPU, colocated 1.6."""
    found = search(_QUESTION)
    best = found.choices[0]
    assert best.name == "2p(tp1)1d(tp1)"
    assert best.found.per_device == pytest.approx(10 / 3)
    colocated = next(choice for choice in found.choices if not choice.design.prefills)
    assert colocated.found.per_device == pytest.approx(1.6)
    assert found.why.startswith("Disaggregate: 2p(tp1)1d(tp1) serves 10.00 requests/s")
    assert "108% more than 3c(tp1)@" in found.why


def test_phases_and_pairs_are_reported_apart() -> None:
    found = search(_QUESTION)
    phases = {choice.name: choice.found.per_device for choice in found.phases}
    assert phases == {"prefill:tp1": _PREFILL_PER_S, "decode:tp1": _DECODE_PER_S}
    assert [choice.name for choice in found.pairs] == ["1p(tp1)1d(tp1)"]


def test_a_slow_link_turns_the_answer_and_the_break_even_says_where() -> None:
    slow = replace(_QUESTION, link=Link(bytes_per_s=1e9))
    found = search(slow)
    assert found.why.startswith("Do not disaggregate: 3c(tp1)@")
    split = next(choice.design for choice in found.choices if choice.design.prefills)
    at = break_even_link(slow, split, _COLOCATED_PER_S * 3)
    assert at is not None
    # 4.8/s of 11.2/s at 4 GB/s
    assert at == pytest.approx(4e9 * 4.8 / 11.2, rel=0.3)


def test_one_gpu_cannot_be_split() -> None:
    found = search(replace(_QUESTION, gpus=1))
    assert all(not choice.design.prefills for choice in found.choices)
    assert found.why.endswith("within both objectives.")


def test_where_nothing_serves_the_binding_objective_is_named() -> None:
    def none(design: Design, draw: Draw, slo: Slo, share: float, first_per_s: float) -> Goodput:
        slow = slo.tpot_s < 1 and (design.decode.devices > 0)
        return Goodput(0.0 if slow else 5.0, design.devices, ())

    with pytest.raises(DesignError, match="no decode worker meets TPOT 40 ms"):
        search(replace(_QUESTION, search=none))


def test_weights_that_fit_nowhere_are_named() -> None:
    def too_big(tp: int, stages: int) -> Price:
        raise DesignError(f"too small with {tp} x {stages}")

    with pytest.raises(DesignError, match="too small with 1 x 2"):
        search(replace(_QUESTION, price_of=too_big))
