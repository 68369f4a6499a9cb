"""The two figures with which the case for two phases is usually made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from loadgen.sim.fleet import roofline
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.fleet import Fleet
from loadgen.sim.fleet.goodput import Draw, at
from loadgen.sim.fleet.prices import PRICES, Price, free, scaled
from loadgen.tables.claim import (
    WHOLE_TOKENS,
    Claim,
    Line,
    Setting,
    Verdict,
    colocated,
    inside,
    lengths,
    near,
    pair,
    pausing,
    per_gpu,
)
from loadgen.workloads.request import Request, build

_OPT: Final = PRICES["opt-13b:tp1"]
_SLO: Final = Slo(0.4, 0.04, joint=False)
_LOOSE_S: Final = 1e6
_PREFILL_PER_S: Final = 5.6
_DECODE_PER_S: Final = 10.0
"""The curves: what one GPU serves of each phase alone."""
_HALVINGS: Final = 9
_BATCH: Final = 8
_PROMPT: Final = 1_024


def _two_prefill_one_decode(setting: Setting) -> Iterator[Line]:
    draw = lengths(setting.count(400), 512, 64)
    price = engine(setting, draw)
    setting.note("colocated, whole prompts")
    whole = per_gpu(pausing(price, 1), draw, _SLO, 1.5)
    yield Line("colocated, whole prompts", "1.6", f"{whole:.2f}", near(whole, 1.6, 0.1))
    setting.note("2P1D")
    split = per_gpu(pair(price, price, 2, 1), draw, _SLO, 8.0)
    yield Line("2P1D", "3.3", f"{split:.2f}", near(split, 3.3, 0.1))
    ratio = split / whole if whole else 9.0
    yield Line("2P1D / whole prompts", "2.1", f"{ratio:.2f}", inside(ratio, 2.1, 2.3))
    setting.note("colocated, chunked")
    chunked = max(per_gpu(colocated(price, 1, size), draw, _SLO, 1.5) for size in (128, 256))
    gain = split / chunked if chunked else 9.0
    yield Line("2P1D / best chunked", "-", f"{gain:.2f}", inside(gain, 1.0, 9.0))


def engine(setting: Setting, draw: Draw) -> Price:
    """The engine of the figures: OPT-13B's fits, each phase slowed down to its curve."""
    setting.note("slowing prefill down to the curve")
    first = _slowed(draw, _PREFILL_PER_S, _prefill_alone)
    setting.note("slowing decode down to the curve")
    rest = _slowed(draw, _DECODE_PER_S, _decode_alone)
    return replace(first, decode=rest.decode, decode_big=rest.decode_big)


def _prefill_alone(price: Price) -> tuple[Design, Slo]:
    return replace(pair(price, free(price), 1, 1), stride=64), replace(_SLO, tpot_s=_LOOSE_S)


def _decode_alone(price: Price) -> tuple[Design, Slo]:
    return pair(free(price), price, 1, 1), replace(_SLO, ttft_s=_LOOSE_S)


def _slowed(draw: Draw, rate_per_s: float, alone: Callable[[Price], tuple[Design, Slo]]) -> Price:
    """OPT-13B with all times by the factor at which the phase alone just serves this rate."""
    workload = draw(rate_per_s)
    low, high = 1.0, 6.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        design, slo = alone(scaled(_OPT, middle))
        if at(design, workload, slo, 0.9, rate_per_s).attainment >= 0.9:
            low = middle
        else:
            high = middle
    return scaled(_OPT, low)


def _interference(setting: Setting) -> Iterator[Line]:
    own = engine(setting, lengths(setting.count(400), 512, 64))
    roof = roofline.find("llama-2-13b:a100:tp1")
    setting.note("a prompt beside a batch")
    whole = stretch(pausing(own, 1))
    yield Line("whole prompt, figure 1's engine, x", "12.6", f"{whole:.1f}", near(whole, 12.6, 0.1))
    sides: tuple[tuple[str, Design], ...] = (
        ("whole prompt, vLLM's fits", pausing(PRICES["vllm-opt-13b:tp1"], 1)),
        ("whole prompt, DistServe's fits", pausing(_OPT, 1)),
        ("whole prompt, roofline", colocated(roof, 1, WHOLE_TOKENS)),
    )
    for name, design in sides:
        found = stretch(design)
        yield Line(f"{name}, x", "12.6", f"{found:.1f}", near(found, 12.6, 0.1))
    for name, design in (
        ("chunks of 512", colocated(own, 1, 512)),
        ("chunks of 256", colocated(own, 1, 256)),
        ("P/D", pair(own, own, 1, 1)),
    ):
        found = stretch(design)
        better = Verdict.BEATEN if found < whole else Verdict.SHORT
        yield Line(f"{name}, figure 1's engine, x", "-", f"{found:.1f}", better)


def stretch(design: Design) -> float:
    """The longest gap of a running batch while a prompt comes, to its usual gap."""
    small = [Request(at_s=0.0, prompt_tokens=16, output_tokens=200) for _ in range(_BATCH)]
    arrives = Request(at_s=2.0, prompt_tokens=_PROMPT, output_tokens=2)
    calm = sorted(row.tpot_s for row in _rows(design, small))
    disturbed = _rows(design, [*small, arrives])
    longest_s = max(row.gap_s for row in disturbed if row.prompt_tokens != _PROMPT)
    return longest_s / calm[len(calm) // 2]


def _rows(design: Design, requests: list[Request]) -> list[Row]:
    rows: list[Row] = []
    Fleet(design, build("batch", 64, requests)).run(rows.append)
    return rows


CLAIMS: Final = (
    Claim(
        name="2P1D",
        source="DistServe, OSDI 2024, figure 1 and its lecture form",
        inputs="512 in, 64 out, Poisson, P90 TTFT 400 ms, P90 TPOT 40 ms; OPT-13B's fits, each "
        "phase slowed down until it alone serves what the curve says: 5.6 and 10 requests/s",
        missing="nothing of the figure's. DistServe's own fits are faster than its curves, so the "
        "curves are taken; the baseline computes whole prompts first while its sequences wait",
        measure=_two_prefill_one_decode,
    ),
    Claim(
        name="interference",
        source="DistServe, OSDI 2024, figure 2 (LLaMA-13B, A100)",
        inputs=f"{_BATCH} running sequences, a prompt of {_PROMPT} tokens computed while they "
        "wait; the engine of figure 1 as in 2P1D, the published fits of this GPU and model size, "
        "and Llama-2-13B by roofline",
        missing="batch size and context of the figure. By the paper's own fits such a prompt "
        "takes 130 ms (its engine) or 174 ms (vLLM), a decode step 20 to 24 ms: not 12.6",
        measure=_interference,
    ),
)
