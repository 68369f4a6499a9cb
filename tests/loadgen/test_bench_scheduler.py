"""The scheduler's bench in small: every figure of its last line is there and makes sense."""

from __future__ import annotations

import argparse

from loadgen import bench_scheduler


def test_decisions_are_measured_and_summed_up() -> None:
    options = argparse.Namespace(blocks=3_000, requests=60, policy="baton")
    cells, per_block = bench_scheduler.measure(8, options)
    assert [len(cell.cpu) for cell in cells] == [57, 3]
    assert [(len(cell.first), len(cell.last)) for cell in cells] == [(3, 3), (3, 3)]
    found = bench_scheduler.summary(cells, per_block, {"per_s": 1})
    assert found["bench"] == "scheduler" and found["cells"]
    figures = cells[0].figures()
    assert figures["p99_ms"] >= figures["p50_ms"] > 0 and figures["flatness"] > 0
    assert bench_scheduler.parse(["--quick"]).requests == 10_000
