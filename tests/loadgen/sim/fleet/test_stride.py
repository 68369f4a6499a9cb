"""Steps that stand for several tokens, runs over processes, and the simulator's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from loadgen import arrivals
from loadgen.__main__ import parser
from loadgen.sim.fleet.callers import Row, steps_of
from loadgen.sim.fleet.design import Design, DesignError, Link
from loadgen.sim.fleet.fleet import Fleet
from loadgen.sim.fleet.goodput import highest
from loadgen.sim.fleet.prices import PRICES
from loadgen.spread import spread
from loadgen.workloads.catalogue import Wish, load
from loadgen.workloads.request import Request, Workload, build

_OPT = PRICES["opt-13b:tp1"]
_DESIGN = Design(
    prefills=1,
    decodes=1,
    prefill=_OPT,
    decode=_OPT,
    link=Link(bytes_per_s=25e9),
    block_tokens=64,
    route="disaggregated",
)


def _workload(count: int, rate: float) -> Workload:
    times = arrivals.poisson(rate, count, seed=1)
    rows = (Request(at_s=at_s, prompt_tokens=300, output_tokens=101) for at_s in times)
    return build("even", 64, rows)


def _rows(design: Design, workload: Workload) -> list[Row]:
    rows: list[Row] = []
    Fleet(design, workload).run(rows.append)
    return rows


def test_a_stride_changes_the_figures_little_and_the_answers_not() -> None:
    workload = _workload(60, 3.0)
    exact, coarse = (_rows(replace(_DESIGN, stride=n), workload) for n in (1, 10))
    assert [row.output_tokens for row in coarse] == [101] * 60
    mean = [sum(row.tpot_s for row in rows) / len(rows) for rows in (exact, coarse)]
    assert mean[1] == pytest.approx(mean[0], rel=0.08)
    first = [sum(row.ttft_s for row in rows) / len(rows) for rows in (exact, coarse)]
    assert first[1] == pytest.approx(first[0], rel=0.05)


def test_one_sequence_alone_takes_the_same_time_at_any_stride() -> None:
    alone = _workload(1, 1.0)
    (exact,), (coarse,) = (_rows(replace(_DESIGN, stride=n), alone) for n in (1, 10))
    assert coarse.last_s - coarse.first_s == pytest.approx(exact.last_s - exact.first_s, rel=1e-3)


def test_a_stride_is_refused_where_it_would_lie() -> None:
    with pytest.raises(DesignError, match="stride is 4 on the route 'auto'"):
        replace(_DESIGN, stride=4, route="auto")
    talks = load(Wish("chat", count=6), Path())
    with pytest.raises(DesignError, match="without follow-ups"):
        Fleet(replace(_DESIGN, stride=4), talks)


@pytest.mark.parametrize(
    ("tokens", "stride", "steps"), [(1, 8, 1), (2, 8, 2), (9, 8, 2), (9, 1, 9)]
)
def test_an_answer_has_its_first_token_and_whole_strides(
    tokens: int, stride: int, steps: int
) -> None:
    assert steps_of(tokens, stride) == steps


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order_of_the_calls(jobs: int) -> None:
    assert list(spread([lambda n=n: n * n for n in range(5)], jobs)) == [0, 1, 4, 9, 16]  # type: ignore[misc]


def test_what_a_call_raises_is_raised() -> None:
    def wrong() -> int:
        raise DesignError("too small")

    with pytest.raises(DesignError, match="too small"):
        list(spread([wrong, wrong], 2))


def test_the_clock_of_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    options = parser().parse_args(["sim", "speed", "--gpus", "2", "--count", "8", "--jobs", "1"])
    if not options.data.is_dir():
        pytest.skip("no public traces here")
    assert options.part(options) == 0
    line = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["bench"] == "sim-speed"
    assert {row["stride"] for row in line["rows"]} == {1, 16}
    assert all(row["per_minute"] > 0 for row in line["rows"])


def test_the_clock_of_a_large_fleet_tells_how_far_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "sim speed --gpus 4 --seconds 70 --rate 0.1 --jobs 1"
    options = parser().parse_args(words.split())
    if not options.data.is_dir():
        pytest.skip("no public traces here")
    assert options.part(options) == 0
    told = capsys.readouterr()
    assert all(line.endswith(" min") for line in told.err.splitlines())
    (row,) = orjson.loads(told.out.splitlines()[-1])["rows"]
    assert (row["workload"], row["stride"]) == ("servegen:m-large", 16)
    assert row["peak_mib"] > 0


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize(("limit", "first"), [(7.3, 1.0), (7.3, 50.0), (0.5, 1.0), (1e-4, 1.0)])
def test_the_highest_rate_is_found_from_below_and_above(
    limit: float, first: float, width: int
) -> None:
    asked: list[int] = []

    def good(rates: Sequence[float]) -> list[bool]:
        asked.append(len(rates))
        return [rate <= limit for rate in rates]

    found = highest(good, first, width)
    if limit < first / 64:
        assert found == 0.0
    else:
        assert limit * 0.95 <= found <= limit
    assert set(asked) == {width}


def test_runs_over_seeds_show_mean_and_range(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["sim", "run", "--count", "8", "--seeds", "2", "--jobs", "1"]
    options = parser().parse_args(flags)
    assert asyncio.run(options.call(options)) == 0
    out = capsys.readouterr().out.splitlines()
    assert orjson.loads(out[-1])["seeds"] == 2
    assert any(line.startswith("ttft_mean_s") and " .. " in line for line in out)
    options = parser().parse_args([*flags, "--seeds", "0"])
    assert asyncio.run(options.call(options)) == 2
    assert "--seeds is 0" in capsys.readouterr().err
