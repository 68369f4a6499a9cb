"""Where an answer turns: hand-made goodput instead of runs."""

from __future__ import annotations

from loadgen.sim.fleet import hinges
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.goodput import Draw, Goodput
from loadgen.sim.fleet.plan import Choice, Question
from loadgen.sim.fleet.prices import PRICES
from loadgen.workloads.catalogue import paced_by_arrival
from loadgen.workloads.request import Request, Workload, build

_OPT = PRICES["opt-13b:tp1"]
_LINK = Link(bytes_per_s=25e9)


def _draw(rate_per_s: float) -> Workload:
    rows = [Request(at_s=n / rate_per_s, prompt_tokens=64, output_tokens=8) for n in range(4)]
    return build("even", 64, rows)


def _search(design: Design, draw: Draw, slo: Slo, share: float, first_per_s: float) -> Goodput:
    """Split fleets serve 10, and colocated ones less the longer the answers are."""
    tokens = draw(1.0).requests[0].output_tokens
    return Goodput(10.0 if design.prefills else 96.0 / tokens, design.devices, ())


def _choice(prefills: int) -> Choice:
    design = Design(
        prefills=prefills, decodes=1, prefill=_OPT, decode=_OPT, link=_LINK, block_tokens=64
    )
    found = Goodput(10.0 if prefills else 12.0, design.devices, ())
    return Choice("split" if prefills else "whole", design, found)


_QUESTION = Question(
    gpus=2,
    node_gpus=8,
    link=_LINK,
    slo=Slo(1.0, 1.0),
    draw=_draw,
    price_of=lambda tp, stages: _OPT,
    search=_search,
)


def test_answers_that_are_longer_turn_the_choice() -> None:
    text = hinges.turns(_QUESTION, hinges.answers(_draw), _choice(1), _choice(0))
    assert text == (
        "It hinges on length of answers, times: of 0.25, 1, 4, split is ahead of whole at 4; "
        "it turns at about 1.1."
    )


def test_a_break_even_is_found_from_either_side() -> None:
    falls = {1.0: (2.0, 1.0), 4.0: (1.0, 2.0), 16.0: (1.0, 2.0)}
    found = hinges.break_even(falls, lambda value: value < 3.0)
    assert found is not None and 3.0 / 1.3 < found < 3.0 * 1.3
    assert hinges.break_even({1.0: (2.0, 1.0), 4.0: (2.0, 1.0)}, lambda _: True) is None


def test_bursts_are_drawn_with_their_variation() -> None:
    asked: list[str] = []

    def draw_with(arrival: str, rate_per_s: float) -> Workload:
        asked.append(arrival)
        return _draw(rate_per_s)

    text = hinges.turns(_QUESTION, hinges.bursts(draw_with), _choice(1), _choice(0))
    assert set(asked) == {"gamma:2", "gamma:4"}
    assert text.startswith("It does not hinge on variation of gaps (1 to 4): split is nowhere")


def test_what_stays_ahead_everywhere_does_not_hinge() -> None:
    text = hinges.told("x", "split", "whole", {1.0: (2.0, 1.0), 2.0: (3.0, 1.0)})
    assert text == "It does not hinge on x (1 to 2): split stays ahead of whole."


def test_recorded_schedules_keep_their_own_arrivals() -> None:
    assert paced_by_arrival("zipf") and paced_by_arrival("preble:toolbench")
    assert not paced_by_arrival("azure:code") and not paced_by_arrival("mine.jsonl")
