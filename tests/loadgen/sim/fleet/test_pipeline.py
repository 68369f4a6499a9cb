"""Pipelines: room, stages that steps share, and the queue of DistServe's formula; engines in which
sequences wait for prompts; workers that share the cores of a host.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen import arrivals
from loadgen.sim.clock import EventHeap
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design, DesignError, Link
from loadgen.sim.fleet.devices import DEVICES, MODELS
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.fleet import Fleet
from loadgen.sim.fleet.plan import name_of
from loadgen.sim.fleet.priced_engine import Pipeline, SharedHost
from loadgen.sim.fleet.prices import PRICES, Price, free
from loadgen.sim.fleet.roofline import find, price
from loadgen.workloads.request import Request, Workload, build

_OPT = PRICES["opt-13b:tp1"]
_NOWHERE = Link(bytes_per_s=1e15, setup_s=0.0)


def _design(prefill: Price, decode: Price) -> Design:
    return Design(
        prefills=1,
        decodes=1,
        prefill=prefill,
        decode=decode,
        link=_NOWHERE,
        block_tokens=64,
        chunk_tokens=512,
        route="disaggregated",
    )


def _rows(design: Design, workload: Workload) -> list[Row]:
    rows: list[Row] = []
    Fleet(design, workload).run(rows.append)
    return rows


def _even(times: tuple[float, ...], prompt: int, output: int) -> Workload:
    rows = (Request(at_s=at_s, prompt_tokens=prompt, output_tokens=output) for at_s in times)
    return build("even", 64, rows)


def test_a_step_goes_through_all_stages_and_the_next_follows_behind_it() -> None:
    pipeline = Pipeline(2)
    assert pipeline.through(0.0, 1.0, 0.1) == pytest.approx(2.1)
    assert pipeline.through(0.0, 1.0, 0.1) == pytest.approx(3.1)
    # Its second stage begins when the longer one before has left.
    assert pipeline.through(2.0, 0.5, 0.1) == pytest.approx(3.6)
    assert pipeline.through(9.0, 1.0, 0.0) == pytest.approx(11.0)


def test_stages_add_room_and_devices_and_keep_the_time_of_a_step() -> None:
    one, two = PRICES["opt-66b:tp2"], find("opt-66b:tp2pp2")
    assert (two.devices, two.stages, two.name) == (4, 2, "opt-66b:tp2pp2")
    assert two.kv_tokens == pytest.approx(PRICES["opt-66b:tp4"].kv_tokens, rel=0.01)
    assert two.decode_s(8, 4_000) == one.decode_s(8, 4_000)
    assert two.hops_s(512) == pytest.approx(0.001, abs=0.0005)
    assert two.reported().step_s > one.reported().step_s
    assert find("opt-66b:tp2pp1") == one
    assert find("llama-3-70b:a100:tp1pp4").devices == 4
    assert free(two).stages == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("llama-3-8b:a100:tp1pp0", "do not split into 0 stages"),
        ("llama-3-8b:a100:pp2", "expected MODEL:GPU:tpN"),
        ("llama-3-70b:a100:tp1", "too small"),
        ("opt-66b:tp2pp0", "0 stages"),
    ],
)
def test_a_pipeline_that_cannot_be_is_named(text: str, named: str) -> None:
    with pytest.raises(DesignError, match=named):
        find(text)
    with pytest.raises(DesignError, match="33 stages"):
        price(MODELS["llama-3-8b"], DEVICES["a100"], stages=33)


def test_a_fleet_of_pipelines_counts_workers_and_gives_each_lane_its_part_of_the_room() -> None:
    piped = find("opt-13b:tp1pp2")
    design = _design(piped, piped)
    assert name_of(design) == "1p(tp1pp2)1d(tp1pp2)"
    assert design.devices == 4
    assert design.decode_tokens == piped.kv_tokens // 2
    fleet = Fleet(design, _even((0.0,), 64, 2))
    assert sum(name.startswith("decode-") for name in fleet.scene.processes) == 2


def test_one_prompt_is_no_faster_in_stages_and_two_overlap() -> None:
    piped = replace(find("opt-13b:tp1pp2"), hop_s=0.0, hop_token_s=0.0)
    whole_s = _OPT.mixed_s(512, 512**2, 0, 0)
    design = _design(piped, free(_OPT))
    (alone,) = _rows(design, _even((0.0,), 512, 1))
    assert alone.ttft_s == pytest.approx(whole_s, abs=0.005)
    ends = sorted(row.ttft_s for row in _rows(design, _even((0.0, 0.0), 512, 1)))
    assert ends == pytest.approx([whole_s, 1.5 * whole_s], abs=0.006)


def test_two_stages_wait_as_the_formula_says() -> None:
    """D + R*D^2 / (4*(2 - R*D)) (DistServe, section 3.1)."""
    rate = 12.0
    piped = replace(find("opt-13b:tp1pp2"), hop_s=0.0, hop_token_s=0.0)
    design = replace(_design(piped, free(_OPT)), stride=64)
    rows = _rows(design, _even(arrivals.poisson(rate, 600, seed=2), 512, 1))
    service_s = _OPT.mixed_s(512, 512**2, 0, 0)
    expected_s = service_s + rate * service_s**2 / (4 * (2 - rate * service_s))
    mean_s = sum(row.ttft_s for row in rows) / len(rows)
    assert mean_s == pytest.approx(expected_s, rel=0.1)


def test_an_engine_that_pauses_takes_prompts_and_sequences_one_after_the_other() -> None:
    pausing = replace(_OPT, pauses=True)
    apart_s = _OPT.mixed_s(512, 512**2, 0, 0) + _OPT.decode_s(8, 800)
    assert pausing.mixed_s(512, 512**2, 8, 800) == pytest.approx(apart_s)
    assert pausing.mixed_s(512, 512**2, 8, 800) > _OPT.mixed_s(512, 512**2, 8, 800)
    assert pausing.mixed_s(0, 0, 8, 800) == _OPT.mixed_s(0, 0, 8, 800)


def test_prompts_come_first_where_sequences_pause_and_these_lose_all_of_their_time() -> None:
    def colocated(price: Price) -> Design:
        mixed = replace(_design(price, price), prefills=0, step_tokens=4_096, chunk_tokens=4_096)
        return replace(mixed, route="colocated")

    running = Request(at_s=0.0, prompt_tokens=64, output_tokens=60)
    comes = Request(at_s=0.5, prompt_tokens=1_024, output_tokens=1)
    work = build("two", 64, [running, comes])
    pausing = colocated(replace(_OPT, pauses=True))
    (first, prompt), (calm,) = (
        _rows(pausing, work)[::-1],
        _rows(pausing, build("one", 64, [running])),
    )
    prompt_s = _OPT.mixed_s(1_024, 1_024**2, 0, 0)
    step_s = _OPT.decode_s(1, 100)
    # It waits for the step that runs, at most, and not for another one.
    assert prompt_s <= prompt.ttft_s <= prompt_s + step_s + 0.005
    assert first.last_s - calm.last_s == pytest.approx(prompt_s, abs=0.005)


def test_objectives_count_together_or_each_for_itself() -> None:
    def row(first_s: float, last_s: float, outcome: str = "finished") -> Row:
        return Row(0, 0.0, 10, 11, first_s, last_s, 0.0, 0, outcome, "default")

    late, slow, lost = row(0.5, 0.6), row(0.1, 3.0), row(0.1, 0.2, "error: queue_full")
    joint, each = Slo(0.4, 0.1), Slo(0.4, 0.1, joint=False)
    assert joint.missed(late) == joint.missed(slow) == (True, True)
    assert each.missed(late) == (True, False)
    assert each.missed(slow) == (False, True)
    assert each.missed(lost) == (True, True)
    assert each.missed(row(0.1, 0.2)) == joint.missed(row(0.1, 0.2)) == (False, False)


def test_steps_on_one_host_slow_each_other_down_while_they_overlap() -> None:
    heap, host = EventHeap(), SharedHost(1.5)
    ends: dict[str, float] = {}

    def run(name: str, alone_s: float) -> None:
        host.step(heap, alone_s, lambda: ends.__setitem__(name, heap.now_s))

    heap.at(0.0, lambda: run("long", 4.0))
    heap.at(1.0, lambda: run("short", 1.0))
    heap.at(9.0, lambda: run("alone", 2.0))
    while len(ends) < 3:
        heap.next()
    # From 1.0 to 2.5 both run at 2/3 of their speed.
    assert ends == pytest.approx({"short": 2.5, "long": 4.5, "alone": 11.0})


def test_neighbours_cost_time_only_where_they_meet() -> None:
    alone = _design(_OPT, _OPT)
    shared = replace(alone, beside=2.0)
    one = _even((0.0,), 512, 11)
    assert _rows(shared, one)[0].last_s == pytest.approx(_rows(alone, one)[0].last_s, abs=1e-6)
    # The second prompt is computed while the first answer comes.
    two = _even((0.0, 0.1), 512, 11)
    (first, _), (slower, _) = (sorted(_rows(d, two), key=_number) for d in (alone, shared))
    assert slower.tpot_s > 1.2 * first.tpot_s


def _number(row: Row) -> int:
    return row.number


def test_pipelines_and_neighbours_do_not_go_together() -> None:
    with pytest.raises(DesignError, match="1 where there are pipelines"):
        replace(_design(find("opt-13b:tp1pp2"), _OPT), beside=1.5)
    with pytest.raises(DesignError, match="beside is 0"):
        replace(_design(_OPT, _OPT), beside=0.5)
    with pytest.raises(DesignError, match="copy_beside is 0"):
        replace(_design(_OPT, _OPT), copy_beside=0.5)
    with pytest.raises(DesignError, match="positive bandwidth"):
        replace(_design(_OPT, _OPT), kvpool_link=Link(bytes_per_s=0.0))


def test_a_copy_slows_steps_and_steps_slow_a_copy() -> None:
    heap, host = EventHeap(), SharedHost(1.5, 3.0)
    ends: dict[str, float] = {}
    heap.at(0.0, lambda: host.step(heap, 4.0, lambda: ends.__setitem__("step", heap.now_s)))
    heap.at(1.0, lambda: host.copy(heap, 1.0, lambda: ends.__setitem__("copy", heap.now_s)))
    while len(ends) < 2:
        heap.next()
    # For 1.5 s the copy has two thirds of its speed and leaves the step a third.
    assert ends == pytest.approx({"copy": 2.5, "step": 5.0})
