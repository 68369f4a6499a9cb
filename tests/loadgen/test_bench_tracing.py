"""The last line of the bench: ratios of neighbours, their spread, and the bar."""

from __future__ import annotations

import pytest

from loadgen.bench_tracing import Slots, parse, summary


def test_ratios_are_taken_slot_by_slot() -> None:
    plain = Slots(requests_per_s=[100.0, 50.0, 80.0], cpu_ms=[10.0, 20.0, 10.0])
    traced = Slots(requests_per_s=[98.0, 50.0, 79.0], cpu_ms=[10.2, 20.0, 10.5])
    line = summary({"plain": plain, "traced": traced}, "hashchain", 27)
    assert line["bench"] == "tracing" and line["spans_per_request"] == 27
    assert line["throughput_loss"] == pytest.approx(80 / 79 - 1, abs=1e-4)
    assert line["throughput_loss_least"] == 0.0
    assert line["throughput_loss_most"] == pytest.approx(100 / 98 - 1, abs=1e-4)
    assert line["cpu_share"] == pytest.approx(0.02, abs=1e-4) and line["within_bar"] is True
    slow = Slots(requests_per_s=[90.0, 45.0, 70.0], cpu_ms=[11.0, 22.0, 11.0])
    assert summary({"plain": plain, "traced": slow}, "m", 1)["within_bar"] is False


def test_quick_is_quick() -> None:
    assert parse(["--quick"]).rounds < parse([]).rounds
