"""Comparisons: what is noise is called noise, what is a difference is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadgen.reports import slo
from loadgen.reports.contrast import Contrast, contrast
from loadgen.reports.run_files import Rows
from tests.loadgen.reports.rows import rows_of

NONE = slo.Slos()


def drawn(seed: int, count: int = 300, factor: float = 1.0, queue: float = 0.9) -> Rows:
    """Latencies that resemble their neighbours, as those of a queue do."""
    chance, waits, wait = np.random.default_rng(seed), [], 0.0
    for _ in range(count):
        wait = queue * wait + float(chance.exponential(0.02))
        waits.append((0.1 + wait) * factor)
    return rows_of(
        *(
            {"at": n / 10, "ttft": w, "tpot": 0.02 + float(chance.normal(0, 0.001))}
            for n, w in enumerate(waits)
        )
    )


def test_two_samples_of_one_server_do_not_differ() -> None:
    runs = [drawn(seed) for seed in range(16)]
    shown = [
        one.name
        for first, second in zip(runs[::2], runs[1::2], strict=True)
        for one in contrast(first, second, False, NONE)
        if one.shown
    ]
    assert shown == []


def test_a_fifth_slower_is_seen_and_how_much() -> None:
    found = contrast(drawn(1, 800), drawn(2, 800, factor=1.4), False, NONE)
    verdicts = {one.name: one for one in found}
    assert verdicts["TTFT p50"].verdict == "B is worse"
    assert verdicts["TTFT p50"].low < 0.4 * verdicts["TTFT p50"].first < verdicts["TTFT p50"].high
    assert verdicts["TPOT p50"].verdict == "no difference shown"


def test_pairs_show_what_samples_cannot() -> None:
    """5 ms on top of waits that vary by 60."""
    chance = np.random.default_rng(5)
    waits = chance.exponential(0.06, 400).tolist()
    first = rows_of(*({"at": n / 10, "ttft": w + 0.1} for n, w in enumerate(waits)))
    second = rows_of(*({"at": n / 10, "ttft": w + 0.105} for n, w in enumerate(waits)))
    paired = {one.name: one.verdict for one in contrast(first, second, True, NONE)}
    apart = {one.name: one.verdict for one in contrast(first, second, False, NONE)}
    assert paired["TTFT mean"] == "B is worse" and apart["TTFT mean"] == "no difference shown"


def test_a_difference_smaller_than_the_drift_within_the_runs_is_none() -> None:
    """Both runs slow down by 60 % on their way: their means say little of the servers."""

    def slowing(seed: int, factor: float) -> Rows:
        chance = np.random.default_rng(seed)
        return rows_of(
            *(
                {"at": n / 10, "ttft": factor * (0.1 + n / 10_000 + abs(chance.normal(0, 0.002)))}
                for n in range(600)
            )
        )

    found = contrast(slowing(1, 1.0), slowing(2, 1.08), False, NONE)
    assert {one.verdict for one in found if one.name.startswith("TTFT")} == {"no difference shown"}
    assert found[0].drift > found[0].change > 5


def test_attainment_is_compared_too_and_more_is_better() -> None:
    good = rows_of(*({"at": n / 10, "ttft": 0.1} for n in range(200)))
    bad = rows_of(*({"at": n / 10, "ttft": 0.1 if n % 2 else 0.9} for n in range(200)))
    found = contrast(good, bad, False, slo.read(["ttft:500"]))[-1]
    assert (found.unit, found.first, found.second) == ("share", 1.0, 0.5)
    assert found.verdict == "B is worse"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({"low": 2.0, "high": 4.0, "second": 103.0}, "B is worse"),
        ({"low": -4.0, "high": -2.0, "second": 97.0}, "B is better"),
        ({"low": -1.0, "high": 7.0, "second": 103.0}, "no difference shown"),
        ({"low": 2.0, "high": 4.0, "second": 103.0, "drift": 3.5}, "no difference shown"),
        ({"low": 0.1, "high": 0.9, "second": 100.5}, "no difference shown"),
    ],
)
def test_the_verdict_of_one_figure(said: dict[str, Any], verdict: str) -> None:
    fields = {"name": "TTFT p50", "first": 100.0, "drift": 0.0, **said}
    assert Contrast(**fields).verdict == verdict


def test_too_few_answers_say_nothing() -> None:
    few = rows_of(*({"ttft": 0.1} for _ in range(19)))
    assert contrast(few, few, True, NONE) == []
