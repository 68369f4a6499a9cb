"""The load generator's arithmetic: schedules, prompts, rows, percentiles, the waterfall."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from loadgen import arrivals, prompts, records, report, waterfall
from loadgen.records import Row


def test_the_schedule_is_fixed_exact_in_its_mean_and_starts_at_zero() -> None:
    first = arrivals.poisson(4.0, 1000, seed=1)
    assert first == arrivals.poisson(4.0, 1000, seed=1) != arrivals.poisson(4.0, 1000, seed=2)
    assert first[0] == 0.0 and list(first) == sorted(first)
    assert 240 < first[-1] < 250
    gaps = [b - a for a, b in itertools.pairwise(first)]
    mean = sum(gaps) / len(gaps)
    spread = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert 0.85 < spread**0.5 / mean < 1.15, "exponential gaps have a variation of one"
    assert arrivals.poisson(float("inf"), 3, seed=1) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="positive rate"):
        arrivals.poisson(0.0, 1, seed=1)


def test_prompts_share_exactly_the_chosen_words_within_a_group() -> None:
    built = prompts.build(prompts.PromptPlan(words=40, shared=30, groups=3, seed=5), 60)
    assert {prompt.group for prompt in built} == {0, 1, 2}
    heads = {(p.group, " ".join(p.text.split()[:30])) for p in built}
    assert len(heads) == 3 and all(len(p.text.split()) == 40 for p in built)
    assert len({p.text for p in built}) == 60
    with pytest.raises(ValueError, match="shared words"):
        prompts.build(prompts.PromptPlan(words=4, shared=5, groups=1, seed=0), 1)


def row(number: int, ttft_s: float, tokens: int = 11, **fields: object) -> Row:
    filled = Row(number, 0, 0.0, "t", sent_s=0.0, outcome="ok", prompt_tokens=100, cached_tokens=25)
    filled.first_s, filled.last_s, filled.output_tokens = ttft_s, ttft_s + 1.0, tokens
    for name, value in fields.items():
        setattr(filled, name, value)
    return filled


def test_latencies_count_from_the_intended_send_and_tpot_excludes_the_first_token() -> None:
    late = row(0, 0.5, intended_s=0.2)
    assert late.ttft_s == pytest.approx(0.3) and late.e2e_s == pytest.approx(1.3)
    assert late.tpot_s == pytest.approx(0.1)
    assert row(0, 0.5, tokens=1).tpot_s is None
    assert Row(0, 0, 0.0, "t").ttft_s is None


def test_percentiles_are_exact_and_absent_without_ten_samples_beyond() -> None:
    values = [float(v) for v in range(1, 101)]
    assert report.percentile(values, 50) == 50.0 and report.percentile(values, 90) == 90.0
    assert report.percentile(values, 95) is None and report.percentile([], 50) is None


def test_the_summary_counts_only_complete_answers_and_sees_a_late_client() -> None:
    rows = [row(n, 0.1 + n / 1000) for n in range(50)]
    rows += [row(50, 9.0, outcome="refused"), row(51, 9.0, outcome="broken")]
    figures = report.summarise(rows)
    assert figures["outcomes"] == {"broken": 1, "ok": 50, "refused": 1}
    assert figures["cache_hit_share"] == 0.25 and figures["prompt_tokens"] == 5000
    assert not report.client_limited(figures)
    late = report.summarise([row(n, 0.1, sent_s=1.0) for n in range(20)])
    assert report.client_limited(late) and "NOT VALID" in report.render(late)


def test_rows_are_written_with_their_trace_ids(tmp_path: Path) -> None:
    records.write_csv([row(0, 0.25), Row(1, 2, 0.5, "abc")], tmp_path / "x" / "requests.csv")
    with (tmp_path / "x" / "requests.csv").open(encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert read[0]["ttft_s"] == "0.250000" and read[1]["trace_id"] == "abc"
    assert read[1]["ttft_s"] == "" and read[1]["outcome"] == "incomplete"


def span(name: str, number: str, parent: str, start: int, end: int) -> dict[str, object]:
    return {
        "span_id": number,
        "parent_id": parent,
        "name": name,
        "service": name.split(".")[0],
        "start_ns": start,
        "end_ns": end,
        "attributes": {"baton.transfer.pages": 3},
    }


def test_the_waterfall_draws_a_tree_in_time_order() -> None:
    spans = [
        span("decode.job", "c", "a", 60, 90),
        span("gateway.root", "a", "outside", 0, 100),
        span("prefill.job", "b", "a", 20, 50),
        span("prefill.chunk", "d", "b", 30, 40),
    ]
    ordered = [(bar.name, bar.depth) for bar in waterfall.bars(spans)]
    assert ordered == [
        ("gateway.root", 0),
        ("prefill.job", 1),
        ("prefill.chunk", 2),
        ("decode.job", 1),
    ]
    text = waterfall.render(spans)
    assert "4 spans, 3 services" in text and "pages=3" in text
    assert waterfall.render([]) == "no spans"
