"""The table of claims: verdicts, what needs no long run, and the flags."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from loadgen import sim_tables
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.fleet import Fleet
from loadgen.sim.fleet.goodput import Goodput
from loadgen.sim.fleet.plan import Choice
from loadgen.sim.fleet.prices import PRICES
from loadgen.tables import claim, dialogues, distserve, lecture, mooncake, preble, regions
from loadgen.tables.claim import Verdict, colocated, lengths, pair
from loadgen.workloads.prefixes import PREBLE
from loadgen.workloads.request import Request, build

_OPT = PRICES["opt-13b:tp1"]


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.9, 2.0, 4.0, "held"),
        (1.8, 2.0, 4.0, "short"),
        (4.0, 2.0, 4.0, "held"),
        (5, 2, 4, "beaten"),
    ],
)
def test_more_is_better(value: float, low: float, high: float, verdict: str) -> None:
    assert claim.inside(value, low, high).value == verdict


def test_a_figure_is_met_within_a_share_and_a_choice_exactly() -> None:
    assert claim.near(1.2, 1.0, 0.25) is Verdict.HELD
    assert claim.near(0.7, 1.0, 0.25) is Verdict.SHORT
    assert claim.equal("2", "2") is Verdict.HELD
    assert claim.equal("4", "2") is Verdict.SHORT


def test_a_hit_needs_all_blocks_before_it() -> None:
    def rows(*blocks: tuple[int, ...]) -> list[Request]:
        return [
            Request(at_s=n, prompt_tokens=16 * len(b), output_tokens=1, blocks=b)
            for n, b in enumerate(blocks)
        ]

    work = build("mine", 16, rows((1, 2, 3), (1, 2, 4), (5, 2, 3), (1, 2, 3)))
    assert mooncake.hit_share(work, 100) == pytest.approx(5 / 12)
    assert mooncake.hit_share(work, 0) == 0.0
    assert mooncake.hit_share(work, 2) < 5 / 12


def test_the_paper_link_and_ours() -> None:
    assert mooncake.flops_break_even_bytes_per_s() == pytest.approx(5.9e9, rel=0.02)
    assert 0 < mooncake.break_even_bytes_per_s() < mooncake.flops_break_even_bytes_per_s()


def test_a_whole_prompt_stretches_a_step_more_than_chunks_and_those_more_than_two_phases() -> None:
    whole = lecture.stretch(colocated(_OPT, 1, claim.WHOLE_TOKENS))
    chunked = lecture.stretch(colocated(_OPT, 1, 256))
    apart = lecture.stretch(pair(_OPT, _OPT, 1, 1))
    assert whole > chunked > apart >= 1.0


def test_drawn_lengths_have_the_published_means_and_fit() -> None:
    rows = dialogues.drawn(dialogues.SHAREGPT, 2_000)(1.0).requests
    prompts, outputs = [r.prompt_tokens for r in rows], [r.output_tokens for r in rows]
    # Cutting to the model's positions takes from the tail.
    assert sum(prompts) / len(rows) == pytest.approx(755.5, rel=0.2)
    assert sum(outputs) / len(rows) == pytest.approx(200.3, rel=0.15)
    assert max(p + o for p, o in zip(prompts, outputs, strict=True)) <= 2_048


def test_a_pair_serves_what_its_slower_side_serves() -> None:
    """Their check on a node of four GPUs: wider prefill workers are better alone, but leave no room
    or too little to do."""

    def alone(name: str, rate_per_s: float, gpus: int) -> Choice:
        return Choice(name, pair(_OPT, _OPT, 1, 1), Goodput(rate_per_s, gpus, ()))

    phases = [
        alone("prefill:tp1", 3.0, 1),
        alone("prefill:tp2", 5.7, 2),
        alone("prefill:tp4", 23.0, 4),
        alone("prefill:tp1pp2", 9.0, 2),
        alone("decode:tp1", 9.7, 1),
        alone("decode:tp2", 15.0, 2),
    ]
    line = distserve.small_node(phases, "their cap")
    assert (line.simulated, line.verdict) == ("tp2 + tp1", Verdict.HELD)
    assert "1.90/GPU" in line.name


def test_workers_without_room_for_a_batch_are_no_choice() -> None:
    """Two A100 hold OPT-66B and 11,600 tokens beside it."""
    assert (2, 1) not in distserve.fitting("66b")
    assert {(4, 1), (2, 2)} <= set(distserve.fitting("66b"))
    assert (1, 1) in distserve.fitting("13b")


def test_rates_follow_from_the_work_of_a_workload() -> None:
    slowest = min(PREBLE, key=lambda kind: preble.capacity_per_s(PREBLE[kind]))
    assert slowest == "loogle"
    assert preble.capacity_per_s(PREBLE["loogle"]) == pytest.approx(0.24, abs=0.05)


def test_places_of_the_sweep_have_all_splits() -> None:
    four, two = regions.PLACES[0], next(p for p in regions.PLACES if p.gpus == 2)
    assert [(d.prefills, d.decodes) for d in regions.splits(four)] == [(1, 3), (2, 2), (3, 1)]
    assert [(d.prefills, d.decodes) for d in regions.splits(two)] == [(1, 1)]
    assert {d.devices for d in regions.chunked(four)} == {4}
    auto = regions.conditional(two, regions.splits(two)[0])
    assert auto.route == "auto"
    # Its steps keep to the time per token: 0.03 s on this GPU are far from 2,048 tokens.
    assert 64 <= auto.budget_tokens < 512


def test_gaps_of_a_run_are_counted_and_averaged() -> None:
    design = replace(colocated(_OPT, 1, claim.WHOLE_TOKENS), gap_limit_s=0.1)
    running = Request(at_s=0.0, prompt_tokens=16, output_tokens=41)
    disturbs = Request(at_s=0.4, prompt_tokens=1_024, output_tokens=1)
    rows: list[Row] = []
    Fleet(design, build("two", 64, [running, disturbs])).run(rows.append)
    row = next(row for row in rows if row.output_tokens == 41)
    assert row.late_gaps == 1
    assert row.gap_s > 0.1 > row.tpot_s
    assert row.tpot_s < row.slow_gap_s < row.gap_s


def test_who_would_miss_the_objective_is_refused_at_arrival() -> None:
    design = replace(
        pair(_OPT, _OPT, 1, 1), admission="early_reject_predicted", ttft_slo_s=0.5, tpot_slo_s=1.0
    )
    draw = lengths(40, 2_000, 2)
    rows: list[Row] = []
    Fleet(design, draw(50.0)).run(rows.append)
    refused = [row for row in rows if not row.ok]
    assert refused and all("deadline_unattainable" in row.outcome for row in refused)
    assert max(row.ttft_s for row in rows if row.ok) < 1.0


def test_whom_a_rule_refuses_is_not_held_by_the_gateway() -> None:
    ruled, free = (mooncake.judged(rule) for rule in ("early_reject_now", "none"))
    assert ruled.patience_s == 0.0 < free.patience_s
    work = lengths(1, 64, 2)(1.0)
    for design in (ruled, free):
        assert Fleet(design, work).scene.pace.queue_patience_s == design.patience_s
    assert ruled.stride == 1


def test_the_table_of_one_claim(capsys: pytest.CaptureFixture[str]) -> None:
    options = sim_tables.parse(["--only", "mooncake link", "--jobs", "1"])
    assert sim_tables.main(options) == 0
    lines = capsys.readouterr().out.splitlines()
    last = orjson.loads(lines[-1])
    assert last["bench"] == "tables"
    assert {row["verdict"] for row in last["claims"]} <= {"held", "beaten", "short"}
    assert last["claims"][0].keys() == {"name", "published", "simulated", "verdict"}
    assert any("missing: " in line for line in lines)


def test_absent_data_leaves_a_claim_out(capsys: pytest.CaptureFixture[str]) -> None:
    options = sim_tables.parse(["--only", "hits", "--jobs", "1", "--data", "/nowhere"])
    assert sim_tables.main(options) == 0
    assert "left out: " in capsys.readouterr().out


def test_all_claims_are_listed_and_unknown_ones_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim_tables.main(sim_tables.parse(["--list"])) == 0
    names = capsys.readouterr().out
    for wanted in ("2P1D", "interference", "DistServe", "Preble", "Sarathi", "Mooncake", "loses"):
        assert wanted in names
    assert sim_tables.main(sim_tables.parse(["--only", "nothing"])) == 2
    assert sim_tables.main(sim_tables.parse(["--scale", "0"])) == 2
    assert "expected 0..100" in capsys.readouterr().err


def test_the_data_folder_is_only_a_default() -> None:
    assert sim_tables.parse([]).data == Path("../shared/data")
