"""Fleets of the live cores: everything ends, time adds up, the same seed gives the same run."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen import arrivals
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design, DesignError, Link
from loadgen.sim.fleet.figures import parse_slo, percentile, summarise
from loadgen.sim.fleet.fleet import Fleet, Spent
from loadgen.sim.fleet.prices import PRICES
from loadgen.sim.gateway_host import GatewayHost
from loadgen.sim.scheduler_host import SchedulerHost
from loadgen.workloads.catalogue import Wish, load
from loadgen.workloads.prefixes import Family, families
from loadgen.workloads.request import Request, Workload, build
from shared.ids import WorkerId

_OPT = PRICES["opt-13b:tp1"]
_DESIGN = Design(
    prefills=1, decodes=1, prefill=_OPT, decode=_OPT, link=Link(bytes_per_s=25e9), block_tokens=64
)


def _run(design: Design, workload: Workload, seed: int = 0) -> tuple[list[Row], Spent]:
    rows: list[Row] = []
    spent = Fleet(design, workload, seed).run(rows.append)
    return rows, spent


def _lengths(times: tuple[float, ...], prompt: int, output: int) -> Workload:
    return build(
        "lengths",
        64,
        (Request(at_s=at_s, prompt_tokens=prompt, output_tokens=output) for at_s in times),
    )


def test_one_request_takes_what_its_work_takes() -> None:
    rows, spent = _run(_DESIGN, _lengths((0.0,), 512, 11))
    (row,) = rows
    prefill_s = _OPT.mixed_s(512, 512**2, 0, 0)
    assert row.ok
    assert row.output_tokens == 11
    assert row.ttft_s == pytest.approx(prefill_s, abs=0.005)
    steps_s = sum(_OPT.decode_s(1, 512 + token) for token in range(1, 11))
    transfer_s = 512 * _OPT.kv_token_bytes / 25e9
    assert row.last_s - row.first_s == pytest.approx(steps_s + transfer_s, abs=0.01)
    assert spent.moved.size_bytes == 512 * _OPT.kv_token_bytes


@pytest.mark.parametrize("rate", [4, 8])
def test_one_queue_waits_as_queueing_theory_says(rate: int) -> None:
    """DistServe's M/D/1 form: D + R*D^2 / (2*(1 - R*D)) (algorithms, 4)."""
    design = replace(_DESIGN, chunk_tokens=512)
    rows, _ = _run(design, _lengths(arrivals.poisson(rate, 500, seed=2), 512, 1))
    service_s = _OPT.mixed_s(512, 512**2, 0, 0)
    expected_s = service_s + rate * service_s**2 / (2 * (1 - rate * service_s))
    mean_s = sum(row.ttft_s for row in rows) / len(rows)
    assert mean_s == pytest.approx(expected_s, rel=0.2)


def test_a_run_is_decided_by_its_seed() -> None:
    workload = load(Wish("zipf", count=25, rate_per_s=6.0), Path())
    design = replace(_DESIGN, prefills=2, decodes=2)
    first, again = (_run(design, workload, seed=3)[0] for _ in range(2))
    assert first == again
    assert len(first) == 25
    assert all(row.ok for row in first)


def test_the_scheduler_learns_from_simulated_steps_as_from_live_ones() -> None:
    """What a worker reports at its start says nothing of contexts: steps do."""
    bursts = ((1, 128), (8, 1_900), (4, 400), (12, 1_600), (2, 1_000), (8, 200))
    rows = [
        Request(at_s=6.0 * turn, prompt_tokens=size, output_tokens=100)
        for turn, (count, size) in enumerate(bursts)
        for _ in range(count)
    ]
    fleet = Fleet(_DESIGN, build("sizes", 64, rows))
    fleet.run(lambda _: None)
    scheduler = fleet.scene.processes["scheduler-0"]
    assert isinstance(scheduler, SchedulerHost)
    worker = scheduler.machine.cluster.get(WorkerId("decode-0"))
    assert worker is not None
    learnt_s = scheduler.machine.world.learned.context_token_s(worker.report)
    assert learnt_s == pytest.approx(_OPT.decode.beta_s, rel=0.3)


def test_collections_are_rare_during_a_run_alone() -> None:
    before, during = gc.get_threshold(), []
    fleet = Fleet(_DESIGN, _lengths((0.0,), 64, 2))
    fleet.run(lambda _: during.append(gc.get_threshold()))
    assert during[0] > before == gc.get_threshold()

    def stop(_: Row) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        Fleet(_DESIGN, _lengths((0.0,), 64, 2)).run(stop)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_run_holds_only_what_is_open() -> None:
    design = replace(_DESIGN, gateways=2)
    fleet = Fleet(design, _lengths((0.0, 0.1, 5.0), 300, 5))
    gateways = [p for p in fleet.scene.processes.values() if isinstance(p, GatewayHost)]
    held: list[int] = []
    fleet.run(lambda _: held.append(sum(len(gateway.clients) for gateway in gateways)))
    assert max(held) == 2
    assert [len(gateway.clients) for gateway in gateways] == [0, 0]


@pytest.mark.parametrize("name", ["chat", "agents"])
def test_follow_ups_wait_for_the_request_before(name: str) -> None:
    workload = load(Wish(name, count=30, rate_per_s=1.0), Path())
    rows, _ = _run(_DESIGN, workload)
    by_number = {row.number: row for row in rows}
    for number, request in enumerate(workload):
        if request.after is not None:
            before = by_number[request.after]
            assert by_number[number].sent_s == pytest.approx(before.last_s + request.at_s)
    assert sum(row.cached_tokens for row in rows) > 0


def test_what_is_shared_is_computed_once() -> None:
    family = Family(groups=1, shared_tokens=2_048, own_tokens=64, output_tokens=2)
    rows, spent = _run(_DESIGN, families("mine", family, (0.0, 5.0, 10.0)))
    assert [row.cached_tokens for row in rows] == [0, 2_048, 2_048]
    assert sum(spent.prompt_tokens.values()) < 2_048 + 4 * 64


def test_colocated_needs_no_prefill_worker() -> None:
    design = replace(_DESIGN, prefills=0, route="colocated")
    rows, spent = _run(design, _lengths((0.0, 0.1), 300, 5))
    assert all(row.ok for row in rows)
    assert spent.moved.reads == 0


def test_a_request_that_fits_nowhere_is_refused_before_the_run() -> None:
    with pytest.raises(DesignError, match="the longest request has 70001 tokens"):
        Fleet(_DESIGN, _lengths((0.0,), 70_000, 1))
    with pytest.raises(DesignError, match="room for 0 tokens"):
        replace(_DESIGN, prefill=replace(_OPT, kv_tokens=0))


def test_figures_of_a_hand_made_run() -> None:
    def row(number: int, sent_s: float, first_s: float, last_s: float, tokens: int) -> Row:
        return Row(number, sent_s, 10, tokens, first_s, last_s, 0.0, 5, "finished", "default")

    rows = [row(0, 0, 0.1, 0.2, 3), row(1, 1, 1.5, 2.5, 11), row(2, 2, 2.2, 2.2, 1)]
    rows.append(Row(3, 3, 10, 0, 0, 0, 0, 0, "error: queue_full", "default"))
    _, spent = _run(_DESIGN, _lengths((0.0,), 64, 1))
    found = summarise(rows, spent, parse_slo("ttft:400,tpot:60"))
    assert (found.requests, found.failed) == (4, 1)
    assert found.attainment == pytest.approx(0.5)
    assert found.ttft_p50_s == pytest.approx(0.2)
    assert found.tpot_mean_s == pytest.approx((0.05 + 0.1) / 2)
    assert found.hit == pytest.approx(0.5)
    assert found.goodput_per_s == pytest.approx(2 / 2.5)


def test_percentiles_are_nearest_rank() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 99) == 4.0
    assert percentile([], 50) == 0.0


@pytest.mark.parametrize("text", ["", "ttft:400", "ttft:0,tpot:1", "ttft:x,tpot:1", "p99:3"])
def test_a_wrong_slo_says_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected ttft:MS,tpot:MS"):
        parse_slo(text)
