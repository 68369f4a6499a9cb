"""The formulas against timelines made by hand, told as the bytes of a server's answer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadgen.events import EventReader
from loadgen.load.histogram import Histogram, as_told, from_told
from loadgen.records import Row
from loadgen.reports import figures, slo, verdicts
from loadgen.reports.summary import Facts, summarise
from tests.loadgen.reports.rows import rows_of


def event(content: str) -> bytes:
    return b"data: " + content.encode() + b"\n\n"


def word(text: str = " a", rest: str = "") -> bytes:
    return event('{"choices":[{"index":0,"delta":{"content":"' + text + '"}' + rest + "}]}")


def test_a_timeline_by_hand() -> None:
    """Intended at 1.0 s, sent at 1.2; role at 1.3, tokens at 1.5, 1.6, 1.9 (two in one chunk) and
    2.0, then usage: 5 tokens."""
    gaps: list[tuple[float, int]] = []
    row = Row(0, 0, 1.0, "t", sent_s=1.2)
    reader = EventReader(row, on_gap=lambda gap_s, tokens: gaps.append((gap_s, tokens)))
    reader.feed(event('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'), 1.3)
    reader.feed(b": keepalive\n\n", 1.4)
    reader.feed(word(), 1.5)
    reader.feed(word(), 1.6)
    reader.feed(word(" b c", ',"token_ids":[7,8]'), 1.9)
    reader.feed(word(" d", ',"finish_reason":"length"'), 2.0)
    usage = '"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":'
    reader.feed(event('{"choices":[],' + usage + '{"cached_tokens":4}}}'), 2.5)
    reader.feed(b"data: [DO", 2.6)
    reader.feed(b"NE]\r\n\r\n", 2.7)
    reader.close()
    assert (row.outcome, row.finish, row.chunks) == ("ok", "length", 4)
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (9, 4, 5)
    assert row.ttft_s == pytest.approx(0.5) and row.ttft_sent_s == pytest.approx(0.3)
    assert row.e2e_s == pytest.approx(1.0), "the last token, not the usage after it"
    assert row.tpot_s == pytest.approx(0.5 / 4), "the first token has no gap"
    assert gaps == [(pytest.approx(0.1), 1), (pytest.approx(0.3), 2), (pytest.approx(0.1), 1)]
    assert row.widest_gap_s == pytest.approx(0.3)
    histogram = Histogram()
    for gap_s, tokens in gaps:
        histogram.add(gap_s, tokens)
    assert histogram.mean == pytest.approx((0.1 + 0.3 * 2 + 0.1) / 4)


@pytest.mark.parametrize("said", ["reasoning_content", "reasoning"])
def test_reasoning_and_tool_arguments_are_tokens(said: str) -> None:
    row = Row(0, 0, 0.0, "t", sent_s=0.0)
    reader = EventReader(row)
    reader.feed(event('{"choices":[{"delta":{"' + said + '":"hm"}}]}'), 1.0)
    call = '{"index":0,"function":{"arguments":"{"}}'
    reader.feed(event('{"choices":[{"delta":{"tool_calls":[' + call + "]}}]}"), 2.0)
    assert (row.first_s, row.last_s, row.chunks) == (1.0, 2.0, 2)


def test_running_usage_tells_the_tokens_of_a_chunk() -> None:
    gaps: list[int] = []
    reader = EventReader(Row(0, 0, 0.0, "t"), on_gap=lambda _, tokens: gaps.append(tokens))
    for at, made in ((1.0, 2), (2.0, 3), (3.0, 7)):
        text = '{"choices":[{"text":"x"}],"usage":{"completion_tokens":' + str(made) + "}}"
        reader.feed(event(text), at)
    assert gaps == [1, 4]


def test_percentiles_are_exact_and_absent_without_ten_values_beyond() -> None:
    values = np.arange(1.0, 101.0)
    assert figures.percentile(values, 50) == 50.0 and figures.percentile(values, 90) == 90.0
    assert figures.percentile(values, 95) is None and figures.percentile([], 50) is None
    spread = figures.spread(values / 1000)
    assert spread["mean"] == pytest.approx(50.5) and spread["n"] == 100
    low, high = spread["ci"]["p50"]
    # Binomial(100, 1/2) lies within 40..60 with 96 %.
    assert low == pytest.approx(40, abs=1) and high == pytest.approx(60, abs=1)
    assert spread["ci"]["mean"][0] == pytest.approx(50.5 - 1.96 * 2.9011, abs=0.01)
    assert figures.percentile_name(99.9) == "p999"


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = np.random.default_rng(7)
    inside = 0
    for _ in range(400):
        drawn = chance.exponential(1.0, 300)
        low, high = figures.spread(drawn / 1000)["ci"]["p90"]
        inside += low <= -math.log(0.1) <= high
    assert 0.92 <= inside / 400 <= 0.99


def test_goodput_counts_what_met_everything_and_every_failure_as_a_miss() -> None:
    rows = rows_of(
        *({"ttft": 0.1, "tpot": 0.02} for _ in range(6)),
        {"ttft": 0.9, "tpot": 0.02},
        {"ttft": 0.1, "tpot": 0.2},
        {"ttft": 0.1, "tokens": 1},
        {"outcome": "refused"},
        {"outcome": "broken", "ttft": 0.1},
        {"outcome": "incomplete"},
        {"outcome": "cancelled"},
    )
    found = figures.goodput(rows, slo.read(["ttft:500", "tpot:50"]), window_s=10.0)
    assert (found["good"], found["judged"]) == (7, 12), "one token has no tpot to miss"
    assert found["goodput_rps"] == pytest.approx(0.7)
    assert found["gpus"] is found["goodput_rps_per_gpu"] is None
    each = figures.goodput(rows, slo.read(["ttft:500", "tpot:50"]), window_s=10.0, gpus=4)
    assert (each["gpus"], each["goodput_rps_per_gpu"]) == (4, pytest.approx(0.175))
    assert found["attainment"] == pytest.approx(7 / 12, abs=1e-6)
    assert found["missed_by"] == {"ttft:500": 1, "tpot:50": 1, "not answered": 3}
    low, high = found["attainment_ci"]
    assert 0 < low < 7 / 12 < high < 1


def test_objectives_of_one_tenant_replace_those_of_all() -> None:
    rows = rows_of({"ttft": 0.3, "tenant": "chat"}, {"ttft": 0.3, "tenant": "batch"})
    assert slo.read(["ttft:100", "batch/ttft:500"]).met(rows).tolist() == [False, True]


@pytest.mark.parametrize(
    "word", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:inf", "ttft:nan", "itl:5", ":5"]
)
def test_a_wrong_objective_says_what_was_expected(word: str) -> None:
    with pytest.raises(slo.SloError, match="expected NAME:MILLISECONDS"):
        slo.read([word])
    with pytest.raises(slo.SloError, match="given twice"):
        slo.read(["ttft:1", "ttft:2"])


def test_the_client_is_limited_by_its_lag_its_sends_its_loop_or_its_processor() -> None:
    fine = rows_of(*({"ttft": 0.2, "lag": 0.001} for _ in range(100)))
    assert not verdicts.client_verdict(fine, 100, [{"strain": {"processor_share": 0.5}}]).limited
    late = rows_of(*({"ttft": 0.2, "lag": 0.006} for _ in range(100)))
    assert "p99 6.0 ms" in verdicts.client_verdict(late, 100, []).reasons[0]
    slow_server = rows_of(*({"ttft": 2.0, "lag": 0.006} for _ in range(100)))
    assert not verdicts.client_verdict(slow_server, 100, []).limited, "2 % of 2 s is 40 ms"
    assert verdicts.client_verdict(fine, 103, []).limited
    held = rows_of(*({"ttft": 9.0, "lag": 4.0, "held": 3.9999} for _ in range(100)))
    assert not verdicts.client_verdict(held, 100, []).limited, "the cap is no lag"
    for strain in ({"loop_lag_p99_ms": 21.0}, {"processor_share": 0.91}):
        assert verdicts.client_verdict(fine, 100, [{"strain": strain}]).limited
    assert verdicts.client_verdict(fine, 100, [{"process": 1, "died": True}]).limited


def test_a_growing_backlog_is_saturation_and_a_steady_one_is_none() -> None:
    grows = rows_of(*({"at": n / 10, "ttft": 0.1 + n / 50} for n in range(300)))
    assert verdicts.saturation(grows)["saturated"]
    chance = np.random.default_rng(3)
    for _ in range(20):
        waits = chance.exponential(0.5, 300)
        steady = rows_of(*({"at": n / 10, "ttft": float(w)} for n, w in enumerate(waits)))
        assert not verdicts.saturation(steady)["saturated"]


def test_figures_are_of_the_steady_window_alone() -> None:
    rows = rows_of(
        *({"at": float(n), "ttft": 9.0 if n < 10 or n >= 90 else 0.1} for n in range(101)),
        {"at": 0.0, "ttft": 7.0, "phase": "warmup"},
    )
    found = summarise(rows, Facts(slos=slo.read(["ttft:500"]), steady=(0.1, 0.89)))
    assert found["windows"]["steady"] == [10.0, 89.0] and found["windows"]["warmup_requests"] == 1
    assert found["metrics"]["ttft_ms"]["mean"] == pytest.approx(100.0)
    assert found["goodput"]["judged"] == 80
    assert found["goodput"]["goodput_rps"] == pytest.approx(80 / 79, rel=1e-4)


def test_reuse_is_told_beside_what_was_possible() -> None:
    rows = rows_of(*({"ttft": 0.1, "prompt": 100, "cached": 48} for _ in range(30)))
    found = summarise(rows, Facts(ideal_hit=0.5))
    assert found["reuse"]["achieved"] == 0.48 and found["reuse"]["gap"] == pytest.approx(0.02)
    more = summarise(rows, Facts(ideal_hit=0.4))
    assert "earlier one" in " ".join(more["warnings"])


def test_a_histogram_keeps_quantiles_to_a_thousandth() -> None:
    chance = np.random.default_rng(1)
    values = chance.lognormal(-4, 1, 20_000)
    histogram, half = Histogram(), Histogram()
    for value in values[:10_000].tolist():
        histogram.add(value)
    for value in values[10_000:].tolist():
        half.add(value)
    histogram.merge(half.counts(), half.total)
    histogram = from_told(as_told(histogram) | {"counts": as_told(histogram)["counts"]})
    assert histogram.count == 20_000 and histogram.mean == pytest.approx(float(values.mean()))
    for share in (0.01, 0.5, 0.9, 0.99):
        true = float(np.quantile(values, share, method="inverted_cdf"))
        assert histogram.quantile(share) == pytest.approx(true, rel=0.0011)
    assert Histogram().quantile(0.5) is None and Histogram().mean is None


def test_the_window_of_turns_leaves_out_the_rests_between() -> None:
    rows = rows_of(
        *({"at": float(n), "ttft": 0.5, "tokens": 1, "step": 0} for n in range(10)),
        *({"at": 50.0 + n, "ttft": 0.5, "tokens": 1, "step": 1} for n in range(5)),
    )
    assert figures.window_of(rows) == pytest.approx(9.5 + 4.5)
    assert figures.window_of(rows.where(rows.numbers["step"] > 1)) == 0.0
