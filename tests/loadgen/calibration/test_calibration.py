"""Known prices come back from the rows and spans that they cause; wrong files are named."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen import records
from loadgen.__main__ import parser
from loadgen.calibration import costs as costs_file
from loadgen.calibration.beside import Busy, alone, factors
from loadgen.calibration.costs import Costs
from loadgen.calibration.learn import learn
from loadgen.calibration.least import fit
from loadgen.calibration.replayed import Compared, compare, design, template_tokens, workload
from loadgen.calibration.run_folder import (
    RunError,
    Served,
    joined,
    read_rows,
    read_spans,
    write_spans,
)
from loadgen.sim.fleet.design import DesignError
from loadgen.sim.fleet.figures import Slo
from loadgen.sim.fleet.fleet import Fleet

_COSTS = Costs(
    name="known",
    step_s=0.02,
    token_s=0.001,
    pair_s=1e-7,
    decode_step_s=0.01,
    decode_token_s=2e-6,
    decode_sequence_s=0.002,
    setup_s=0.002,
    bytes_per_s=1e8,
    front_s=0.006,
    kv_token_bytes=1_000,
    kv_tokens=50_000,
)


_CHECKS_S = 0.003
"""From the arrival of the last page until decoding begins."""


def _span(name: str, length_s: float, **told: object) -> dict[str, Any]:
    attributes = {f"baton.{key.replace('__', '.')}": value for key, value in told.items()}
    return {
        "trace_id": "",
        "name": name,
        "service": "prefill" if name.startswith("prefill") else "decode",
        "start_ns": 10**18,
        "end_ns": 10**18 + round(length_s * 1e9),
        "attributes": attributes,
    }


def _life(
    number: int, at_s: float, prompt: int, output: int
) -> tuple[Served, list[dict[str, Any]]]:
    """A request alone on its worker, as the known costs have it."""
    price = _COSTS.price()
    chunk_s = price.mixed_s(prompt, prompt**2, 0, 0)
    size = prompt * _COSTS.kv_token_bytes
    pull_s = _COSTS.setup_s + size / _COSTS.bytes_per_s
    first_s = at_s + _COSTS.front_s + chunk_s
    step_s = price.decode_s(1, round(prompt + output / 2))
    served = Served(
        number=number,
        group=number % 2,
        intended_s=at_s,
        first_s=first_s,
        last_s=first_s + pull_s + _CHECKS_S + step_s * (output - 1),
        prompt_tokens=prompt,
        cached_tokens=0,
        output_tokens=output,
        trace_id=f"t{number}",
    )
    spans = [
        _span("prefill.queue", 0.0),
        _span("prefill.chunk", chunk_s, chunk__tokens=prompt, chunk__start=0),
        _span("transfer.pull", pull_s, transfer__bytes_raw=size, transfer__pages=prompt // 16),
        _span("decode.verify", 0.0),
        _span("decode.generate", step_s * (output - 1)),
    ]
    there_s = chunk_s + pull_s + _CHECKS_S
    for span, at in zip(spans[2:], (chunk_s, there_s, there_s), strict=True):
        span["start_ns"] += round(at * 1e9)
        span["end_ns"] += round(at * 1e9)
    for span in spans:
        span["trace_id"] = served.trace_id
        span["start_ns"] += round(at_s * 1e9)
        span["end_ns"] += round(at_s * 1e9)
    return served, spans


_LIVES = [_life(n, 10.0 * n, 64 * (1 + n % 7), 8 + n % 5) for n in range(30)]
_ROWS = tuple(served for served, _ in _LIVES)
_TRACES = [spans for _, spans in _LIVES]


def test_least_squares_find_a_plane_and_never_go_below_zero() -> None:
    rows = [(1.0, float(x), float(x * x)) for x in range(1, 9)]
    assert fit(rows, [3 + 2 * x + 0.5 * x2 for _, x, x2 in rows]) == pytest.approx((3, 2, 0.5))
    falling = fit([(1.0, float(x)) for x in range(1, 6)], [6.0 - x for x in range(1, 6)])
    assert falling[1] == 0.0 < falling[0]
    assert fit([(1.0, 0.0), (1.0, 0.0)], [2.0, 2.0]) == pytest.approx((2.0, 0.0))
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([], [])


def test_known_prices_come_back() -> None:
    learnt = learn("known", _ROWS, _TRACES, kv_tokens=50_000)
    found = learnt.costs
    assert found.token_s == pytest.approx(_COSTS.token_s, rel=0.02)
    assert found.step_s == pytest.approx(_COSTS.step_s, rel=0.1)
    assert found.bytes_per_s == pytest.approx(_COSTS.bytes_per_s, rel=0.01)
    assert found.front_s == pytest.approx(_COSTS.front_s, rel=0.01)
    assert found.kv_token_bytes == 1_000
    alone = found.price().decode_s(1, 300)
    assert alone == pytest.approx(_COSTS.price().decode_s(1, 300), rel=0.02)
    assert found.setup_s == pytest.approx(_COSTS.setup_s + _CHECKS_S, rel=0.01)
    assert learnt.observations == {"chunks": 30, "answers": 30, "handoffs": 30, "ways": 30}
    assert max(learnt.off.values()) < 0.01


def test_a_run_is_simulated_as_its_costs_have_it() -> None:
    figures = compare(design(_COSTS, 1, 1), _ROWS, 0.0, Slo(1.0, 0.1))
    ttft, tpot, good = figures
    assert ttft.error_percent == pytest.approx(0.0, abs=5)
    assert tpot.error_percent == pytest.approx(0.0, abs=15)
    assert good.error_percent == pytest.approx(0.0, abs=5)
    assert Compared("x", 0.0, 0.0).error_percent == 0.0
    assert Compared("x", 2.0, 3.0).error_percent == pytest.approx(50.0)


def test_what_a_neighbour_costs_is_told_from_what_work_costs() -> None:
    """Half of the chunks and of the answers had company, which made them 1.5 times as long."""
    rows, traces = [], []
    for number in range(40):
        served, spans = _life(number, 20.0 * number, 64 * (1 + number % 7), 8 + number % 5)
        slower = 1.5 if number % 2 else 1.0
        begin = number * 20 * 10**9
        length = round(slower * (served.last_s - served.first_s) * 1e9)
        chunk = round(slower * (spans[1]["end_ns"] - spans[1]["start_ns"]))
        # Where there is company, each covers the other's time.
        generate = _span("decode.generate", 0.0)
        both = max(length, chunk) if number % 2 else 0
        generate |= {"start_ns": begin, "end_ns": begin + length, "trace_id": served.trace_id}
        apart = 0 if both else length + 10**9
        spans[1] |= {"start_ns": begin + apart, "end_ns": begin + apart + chunk}
        filler = _span("prefill.chunk", 0.0, chunk__tokens=0)
        filler |= {"start_ns": begin, "end_ns": begin + length if both else begin}
        other = _span("decode.generate", 0.0)
        other |= {"start_ns": begin, "end_ns": begin + both, "trace_id": f"x{number}"}
        rows.append(replace(served, last_s=served.first_s + length / 1e9))
        traces.append([*spans, generate, filler])
        traces.append([other])
    learnt = learn("beside", rows, traces, kv_tokens=50_000)
    assert learnt.costs.beside == pytest.approx(1.5, abs=0.1)
    assert learnt.costs.token_s == pytest.approx(_COSTS.token_s, rel=0.1)


def test_what_a_pool_node_copies_is_learnt_and_played_again() -> None:
    """20 ms and 50 MB/s of it; while it copies, every other answer is decoded half as fast."""
    rows, traces = [], []
    for number in range(40):
        served, spans = _life(number, 20.0 * number, 64 * (1 + number % 7), 8 + number % 5)
        size, generate = served.prompt_tokens * _COSTS.kv_token_bytes, spans[-1]
        copy = _span("transfer.pull", 0.0, transfer__bytes_raw=size, transfer__pages=4)
        length = round((0.02 + size / 5e7) * 1e9)
        begin = generate["start_ns"] if number % 2 else generate["end_ns"] + 10**9
        copy |= {"service": "baton.kvpool", "start_ns": begin, "end_ns": begin + length}
        if number % 2:
            generate["end_ns"] += length // 2
            served = replace(served, last_s=served.last_s + length / 2e9)
        rows.append(served)
        traces.append([*spans, copy | {"trace_id": served.trace_id}])
    costs = learn("copied", rows, traces, kv_tokens=50_000).costs
    assert (costs.beside, costs.copy_beside) == (1.0, pytest.approx(2.0, abs=0.1))
    assert costs.copy_setup_s == pytest.approx(0.02, rel=0.01)
    assert costs.copy_bytes_per_s == pytest.approx(5e7, rel=0.01)
    assert costs.price().decode_s(1, 300) == pytest.approx(
        _COSTS.price().decode_s(1, 300), rel=0.05
    )
    fleet = design(costs, 1, 1)
    assert fleet.kvpools == 1 and fleet.kvpool_link == costs.pool_link()
    assert design(_COSTS, 1, 1).kvpools == 0
    copied, alone_ = (
        compare(played, rows, 0.0, Slo(9.0, 9.0))[1].simulated
        for played in (fleet, replace(fleet, kvpools=0))
    )
    # 25 ms at half the speed, over nine gaps.
    assert copied - alone_ == pytest.approx(0.025 / 2 / 9, rel=0.3)


def test_prompts_that_share_a_step_are_one_observation() -> None:
    rows, traces = [], []
    price = _COSTS.price()
    for number in range(24):
        mine, other = 64 * (1 + number % 5), 48 * (1 + number % 3)
        served, spans = _life(number, 10.0 * number, mine, 8)
        begin = number * 10 * 10**9
        both_s = price.mixed_s(mine + other, mine**2 + other**2, 0, 0)
        step = {"start_ns": begin, "end_ns": begin + round(both_s * 1e9)}
        neighbour = _span("prefill.chunk", 0.0, chunk__tokens=other, chunk__start=0) | step
        spans[1] |= step
        rows.append(served)
        traces += [spans, [neighbour]]
    found = learn("shared steps", rows, traces, kv_tokens=50_000)
    assert found.observations["chunks"] == 24
    assert found.costs.token_s == pytest.approx(_COSTS.token_s, rel=0.05)
    assert found.off["prefill"] < 0.01


def test_waiting_between_chunks_is_no_part_of_the_way() -> None:
    served, spans = _life(0, 0.0, 128, 8)
    spans[0] |= {"start_ns": 10**18, "end_ns": 10**18 + 10**8}
    # Another job's chunk ran between.
    spans[1] |= {"start_ns": 10**18 + 2 * 10**8, "end_ns": 10**18 + 5 * 10**8}
    late = replace(served, first_s=0.5 + 0.04, last_s=1.0)
    assert learn("way", [late], [spans], 50_000).costs.front_s == pytest.approx(0.04)


def test_devices_of_their_own_have_no_neighbours() -> None:
    assert learn("alone", _ROWS, _TRACES, kv_tokens=50_000).costs.beside == 1.0


def test_shares_of_time_are_of_merged_spans() -> None:
    busy = Busy.of([(10, 20), (15, 30), (50, 60), (52, 55)])
    assert busy.spans == ((10, 30), (50, 60))
    assert busy.share(0, 40) == pytest.approx(0.5)
    assert busy.share(25, 55) == pytest.approx(10 / 30)
    assert busy.share(31, 49) == busy.share(5, 5) == busy.share(70, 80) == 0.0
    assert Busy.of([]).share(0, 9) == 0.0
    assert alone(3.0, (0.5, 0.0), (2.0, 9.0)) == pytest.approx(2.25)
    assert alone(3.0, (0.5, 1.0), (2.0, 3.0)) == pytest.approx(0.75)
    found = factors(lambda known: abs(known[0] - 1.4) + abs(known[1] - 2.1))
    assert found == pytest.approx((1.4, 2.1))
    assert factors(lambda known: 1.0) == (1.0, 1.0)


def test_groups_share_their_part_of_the_prompts() -> None:
    work = workload("shared", _ROWS, 0.5)
    assert 0.3 < work.ideal_hit < 0.5
    assert workload("own", _ROWS, 0.0).ideal_hit == 0.0


def test_every_prompt_begins_with_the_template() -> None:
    rows = [replace(row, cached_tokens=35) for row in _ROWS]
    assert template_tokens([rows, rows]) == 32
    assert template_tokens([_ROWS]) == template_tokens([]) == 0
    work = workload("own", rows, 0.0, 32)
    assert {request.blocks[:2] for request in work} == {work.requests[0].blocks[:2]}
    assert len({request.blocks[2] for request in work}) == len(rows)
    # A prompt shorter than the template is all template.
    (short,) = workload("short", [replace(rows[0], prompt_tokens=16)], 0.0, 32)
    assert short.blocks == work.requests[0].blocks[:1]


def test_joined_runs_do_not_overlap() -> None:
    both = joined([_ROWS[:3], _ROWS[:3]])
    assert [row.number for row in both] == list(range(6))
    assert both[3].intended_s == pytest.approx(_ROWS[0].intended_s + _ROWS[2].last_s)
    assert [row.ttft_s for row in both[3:]] == pytest.approx([row.ttft_s for row in _ROWS[:3]])
    assert joined([]) == ()


def test_spans_and_costs_survive_their_files(tmp_path: Path) -> None:
    write_spans(tmp_path, _TRACES)
    assert [list(spans) for spans in read_spans(tmp_path)] == _TRACES
    path = tmp_path / "costs.json"
    costs_file.write(_COSTS, path)
    assert costs_file.read(path) == _COSTS


def _write_run(folder: Path) -> None:
    rows = [
        records.Row(
            number=row.number,
            group=row.group,
            intended_s=row.intended_s,
            trace_id=row.trace_id,
            sent_s=row.intended_s,
            first_s=row.first_s,
            last_s=row.last_s,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=0,
            output_tokens=row.output_tokens,
            outcome="ok",
        )
        for row in _ROWS
    ]
    records.write_csv(
        [*rows, records.Row(99, 0, 1.0, "", outcome="refused")], folder / "requests.csv"
    )
    write_spans(folder, _TRACES)


def _sim(*flags: str) -> int:
    options = parser().parse_args(["sim", *flags])
    return int(asyncio.run(options.call(options)))


def test_calibrate_then_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_run(tmp_path)
    assert _sim("calibrate", str(tmp_path)) == 0
    line = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["bench"] == "sim-calibrate" and line["chunks"] == 30
    costs = str(tmp_path / "costs.json")
    assert _sim("run", "--costs", costs, "--count", "6", "--block-tokens", "16") == 0
    assert '"bench":"sim-run"' in capsys.readouterr().out
    assert _sim("run", "--costs", costs, "--prefill-tp", "2") == 2
    assert "not tp2" in capsys.readouterr().err


def test_wrong_runs_name_file_line_and_field(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"):
        read_rows(tmp_path)
    _write_run(tmp_path)
    path = tmp_path / "requests.csv"
    text = path.read_text()
    path.write_text(text.replace(",64,", ",many,", 1))
    with pytest.raises(RunError, match=r"requests.csv, line 2: prompt_tokens is 'many'"):
        read_rows(tmp_path)
    (tmp_path / "spans.jsonl").write_text('{"spans": 3}\n')
    with pytest.raises(RunError, match=r"spans.jsonl, line 1: spans must be a list"):
        read_spans(tmp_path)
    with pytest.raises(RunError, match="nothing tells what a prompt costs"):
        learn("x", _ROWS, [[]], 100)
    with pytest.raises(RunError, match="nothing tells what a decode step costs"):
        learn("x", [replace(_ROWS[0], output_tokens=1)], _TRACES, 100)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"token_s": -1.0}, "token_s is -1.0"),
        ({"token_s": None}, "token_s is None"),
        ({"kv_tokens": 1.5}, "kv_tokens is 1.5"),
        ({"bytes_per_s": 0}, "bytes_per_s is 0"),
        ({"surprise": 1}, "surprise is unknown"),
        ({"format": "x"}, "expected"),
    ],
)
def test_wrong_costs_name_the_field(change: dict[str, object], text: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    costs_file.write(_COSTS, path)
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | change))
    with pytest.raises(DesignError, match=text):
        costs_file.read(path)


def test_a_pool_too_small_for_a_request_says_so() -> None:
    small = replace(_COSTS, kv_tokens=128)
    with pytest.raises(DesignError, match="room for 128"):
        Fleet(design(small, 1, 1), workload("live", _ROWS, 0.0))


@pytest.mark.parametrize("name", ["prefill.chunk", "transfer.pull", "decode.verify"])
def test_a_span_without_times_is_named(name: str) -> None:
    traces = [[dict(span) for span in spans] for spans in _TRACES]
    (broken,) = (span for span in traces[3] if span["name"] == name)
    del broken["end_ns"]
    with pytest.raises(RunError, match=name):
        learn("broken", _ROWS, traces, kv_tokens=50_000)
