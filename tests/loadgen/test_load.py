"""The load generator's arithmetic: schedules, prompts, rows, the waterfall."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadgen import arrivals, prompts, records, waterfall
from loadgen.records import Row


def test_the_schedule_is_fixed_exact_in_its_mean_and_starts_at_zero() -> None:
    first = arrivals.poisson(4.0, 1000, seed=1)
    assert first == arrivals.poisson(4.0, 1000, seed=1) != arrivals.poisson(4.0, 1000, seed=2)
    assert first[0] == 0.0 and list(first) == sorted(first)
    assert 240 < first[-1] < 250
    assert 0.85 < variation(first) < 1.15, "exponential gaps have a variation of one"
    assert arrivals.poisson(float("inf"), 3, seed=1) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="positive rate"):
        arrivals.poisson(0.0, 1, seed=1)


def variation(times: Sequence[float]) -> float:
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    return float((sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean)


def test_on_and_off_have_two_rates_and_one_mean() -> None:
    silent = arrivals.on_off(10.0, 4_000, 2.0, 6.0, seed=3)
    assert all(at % 8.0 <= 2.0 for at in silent) and 392 < silent[-1] < 401
    both = arrivals.on_off(10.0, 4_000, 2.0, 6.0, seed=3, on_factor=2.0)
    on = sum(at % 8.0 < 2.0 for at in both) / len(both)
    assert on == pytest.approx(0.5, abs=0.02), "twice the rate in a quarter of the time"
    assert list(both) == sorted(both) and 390 < both[-1] < 401
    with pytest.raises(ValueError, match="leaves none off"):
        arrivals.on_off(10.0, 10, 2.0, 6.0, seed=3, on_factor=5.0)


@pytest.mark.parametrize("exponential", [False, True])
def test_a_ramp_goes_from_one_rate_to_another(exponential: bool) -> None:
    times = arrivals.ramp(2.0, 18.0, 20_000, seed=1, exponential=exponential)
    mean = 16 / math.log(9) if exponential else 10.0
    assert times[-1] == pytest.approx(20_000 / mean, rel=0.01)
    span = times[-1]
    early = sum(at < span * 0.05 for at in times) / (span * 0.05)
    late = sum(at > span * 0.95 for at in times) / (span * 0.05)
    assert early == pytest.approx(2.0, rel=0.35) and late == pytest.approx(18.0, rel=0.15)
    assert arrivals.ramp(5.0, 5.0, 10, seed=1) == arrivals.poisson(5.0, 10, seed=1)


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
    late = row(0, 0.5, intended_s=0.2, sent_s=0.25)
    assert late.ttft_s == pytest.approx(0.3) and late.e2e_s == pytest.approx(1.3)
    assert late.ttft_sent_s == pytest.approx(0.25)
    assert late.tpot_s == pytest.approx(0.1)
    assert row(0, 0.5, tokens=1).tpot_s is None
    assert Row(0, 0, 0.0, "t").ttft_s is None and Row(0, 0, 0.0, "t").ttft_sent_s is None


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
