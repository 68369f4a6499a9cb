"""How the handoff bench turns spans and stamps into figures, and that all of it runs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from loadgen.bench_handoff import parse, summary
from loadgen.handoff import transfers
from loadgen.handoff.figures import Measured, copy_rate, covered_ns, hidden_ns, read_trace
from loadgen.handoff.pace import Pace
from loadgen.handoff.transfers import Rates, Transfers

_ROOT = Path(__file__).resolve().parents[2]


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


def rates(plane: list[float], raw: list[float], tcp: list[float]) -> Rates:
    return Rates({"tcp": tcp, "raw": raw, "plane": plane})


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is slow for a while is slow for all three."""
    found = rates([1.0, 8.0, 2.0], [1.0, 10.0, 2.0], [0.5, 8.0, 0.5])
    assert found.ratio("raw") == 1.0
    assert found.ratio("tcp") == 2.0
    assert found.figures()["plane_gb_per_s"] == [2.0, 1.0, 8.0]
    assert found.figures()["ratio_to_tcp"] == 2.0


def measured(length: int, hidden: float) -> Measured:
    return Measured(
        prompt_tokens=length,
        colocated_ttft_ms=[10.0],
        split_ttft_ms=[11.0],
        transfer_ms=[1.0],
        hidden_share=[hidden],
        gigabytes_per_s=[1.0],
        copy_gigabytes_per_s=[9.0],
    )


def test_the_worst_size_and_the_longest_prompt_count() -> None:
    moved = Transfers(
        "ucx:shm", {1 << 16: rates([1.0], [4.0], [1.0]), 1 << 20: rates([3.0], [3.0], [6.0])}
    )
    pace = Pace(quiet_ms=[50.0, 40.0, 50.0], handoff_ms=[51.0, 44.0, 50.5])
    line = summary(moved, {128: measured(128, 0.1), 4096: measured(4096, 0.9)}, pace)
    assert line["bench"] == "handoff"
    assert (line["ratio_to_raw"], line["ratio_to_tcp"]) == (0.25, 0.5)
    assert line["hidden_share_4k"] == 0.9
    assert line["tpot_change"] == pytest.approx(0.02)
    assert list(line["sizes"]) == ["64KiB", "1MiB"]  # type: ignore[call-overload]


def test_quick_is_small() -> None:
    quick = parse(["--quick", "--rounds", "9"])
    assert (quick.lengths, quick.rounds, quick.pairs, quick.transfer_rounds) == ([128], 1, 1, 1)
    assert parse([]).lengths == [128, 1024, 4096]


@pytest.mark.process
@pytest.mark.parametrize("transport", ["auto", "tcp"])
async def test_all_three_contenders_move_the_right_bytes(transport: str) -> None:
    """They raise where a byte is wrong."""
    moved = await transfers.measure((1 << 16, 1 << 22), 1, transport, 1 << 22)
    assert moved.transport == ("ucx:shm" if transport == "auto" else "ucx:tcp")
    for found in moved.sizes.values():
        assert {name: len(values) for name, values in found.found.items()} == {
            "plane": 1,
            "raw": 1,
            "tcp": 1,
        }


@pytest.mark.process
async def test_the_whole_bench_runs() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadgen.bench_handoff",
        "--quick",
        "--model=hashchain",
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(240):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    line = json.loads(output.decode().splitlines()[-1])
    assert line["bench"] == "handoff"
    wanted = {"ratio_to_raw", "ratio_to_tcp", "hidden_share_128", "tpot_change"}
    assert wanted <= line.keys()
