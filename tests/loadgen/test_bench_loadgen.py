"""The bench's own arithmetic: truth against figures, and the demo's last line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen import bench_loadgen, load_demo
from loadgen.load.scripted import Script
from loadgen.reports import figures
from tests.loadgen.reports.rows import rows_of


def test_an_error_is_within_when_it_is_small_by_either_measure() -> None:
    truth = {"ttft": {"p50": 300.0}, "tpot": {"p50": 10.0}, "itl": {"p50": 10.0}}
    found = {"ttft": {"p50": 302.9}, "tpot": {"p50": 10.9}, "itl": {"p50": 11.1}}
    errors = bench_loadgen.compare(found, truth)
    assert errors["p50 ttft"]["beyond"] == pytest.approx(2.9 / 3, abs=0.001)
    assert errors["p50 tpot"]["beyond"] == pytest.approx(0.9)
    assert errors["p50 itl"]["beyond"] == pytest.approx(1.1), "11 % and 1.1 ms"


def test_the_truth_is_that_of_the_requests_in_the_rows() -> None:
    rows = rows_of(*({"ttft": 0.1, "tokens": 3, "tpot": 0.01} for _ in range(1_100)))
    script = Script(ttft_s=0.1, ttft_spread_s=0.0)
    truth = [
        {
            "trace_id": f"{number:032x}",
            "ttft_s": 0.1,
            "e2e_s": 0.12,
            "tokens": 3,
            "script": script.times(number),
            "gaps_s": [0.01, 0.01],
        }
        for number in range(1_100)
    ]
    foreign: dict[str, Any] = {**truth[0], "trace_id": "f" * 32, "ttft_s": 9.0}
    expected = bench_loadgen.expected([*truth, foreign], rows)
    assert expected["ttft_sent"]["mean"] == pytest.approx(100.0)
    assert expected["tpot"]["p50"] == pytest.approx(10.0)
    told = {name: figures.spread(rows.numbers[f"{name}_s"]) for name in ("ttft_sent", "tpot")}
    spreads = {f"{name}_ms": spread for name, spread in told.items()}
    document = {"metrics": {**spreads, "itl_ms": told["tpot"], "ttft_ms": told["ttft_sent"]}}
    errors = bench_loadgen.compare(bench_loadgen.measured(document, rows), expected)
    assert max(error["beyond"] for error in errors.values()) < 0.001 and len(errors) == 25


def test_a_script_goes_evenly_through_its_spread() -> None:
    script = Script(ttft_s=0.1, ttft_spread_s=0.2, tpot_s=0.01, tpot_spread_s=0.01)
    ttfts = sorted(script.times(number)[0] for number in range(1_000))
    assert 0.1 <= ttfts[0] < 0.101 and 0.299 < ttfts[-1] < 0.3
    assert ttfts[500] == pytest.approx(0.2, abs=0.001)


def side(ttft_ms: float, **outcomes: int) -> dict[str, Any]:
    return {
        "counts": {"outcomes": outcomes},
        "trouble": [],
        "metrics": {"requests": 90, "ttft_ms": {"p50": ttft_ms}, "tpot_ms": {"p50": 9.0}},
        "goodput": {"goodput_rps": 0.9},
        "reuse": {"achieved": 0.8, "ideal": 0.85},
        "client": {"limited": False},
    }


def test_the_demo_ends_with_the_figures_of_the_handover() -> None:
    found = {"disaggregated": side(50.0, ok=90), "colocated": side(40.0, ok=90)}
    line = load_demo.summary(found, Path("r.html"))
    assert {name: line[name] for name in list(line)[:6]} == {
        "bench": "load-demo", "failed": 0, "report": "r.html", "ttft_p50_ms": 50.0,
        "tpot_p50_ms": 9.0, "goodput_rps": 0.9,
    }  # fmt: skip
    assert line["colocated_ttft_p50_ms"] == 40.0
    found["colocated"] = side(40.0, ok=88, error=2)
    assert load_demo.summary(found, Path("r.html"))["failed"] == 2
