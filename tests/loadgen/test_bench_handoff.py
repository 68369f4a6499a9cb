"""How the handoff bench turns spans into figures."""

from __future__ import annotations

import pytest

from loadgen.bench_handoff import Measured, copy_rate, covered_ns, hidden_ns, read_trace


def span(name: str, start: int, end: int, size: int = 0) -> dict[str, object]:
    attributes = {"baton.transfer.bytes_raw": size, "baton.transfer.transport": "ucx:tcp"}
    return {"name": name, "start_ns": start, "end_ns": end, "attributes": attributes}


def test_overlapping_transfers_are_counted_once() -> None:
    assert covered_ns([(0, 10), (5, 20), (30, 40), (31, 32)]) == 30
    assert covered_ns([]) == 0


def test_hidden_is_what_lies_before_the_last_chunk_ends() -> None:
    compute = [(0, 100), (100, 200)]
    assert hidden_ns([(100, 150), (200, 250)], compute) == 50
    assert hidden_ns([(190, 220)], compute) == 10


def test_a_trace_becomes_figures() -> None:
    measured = Measured(prompt_tokens=64, colocated_ttft_ms=[10.0], split_ttft_ms=[12.0])
    read_trace(
        [
            span("prefill.chunk", 0, 1000),
            span("prefill.chunk", 1000, 2000),
            span("transfer.pull", 1000, 1500, 3000),
            span("transfer.pull", 2000, 2500, 1000),
        ],
        measured,
    )
    measured.copy_gigabytes_per_s.append(copy_rate(1 << 20))
    figures = measured.figures()
    assert figures["hidden_share"] == 0.5
    assert figures["transfer_bytes"] == 4000
    assert figures["transfer_gb_per_s"] == 4.0
    assert figures["ttft_ratio"] == pytest.approx(1.2)
    assert measured.transport == "ucx:tcp"
