"""How the interference bench turns stamps into gaps and figures."""

from __future__ import annotations

import pytest

from loadgen.bench_interference import parse
from loadgen.interference.figures import Measured, percentile, summary
from loadgen.interference.sides import WHOLE_TOKENS, settings, topology
from loadgen.interference.windows import Window, gaps


def test_a_gap_that_begins_before_the_first_token_and_ends_after_it_counts() -> None:
    stamps = [[0.0, 1.0, 2.0, 5.0, 5.5], [0.5, 6.0]]
    assert gaps(stamps, 2.5, 4.0, whole=False) == (3000.0, 5500.0)
    assert gaps(stamps, 0.0, 2.5, whole=True) == (1000.0, 1000.0)
    assert gaps(stamps, 7.0, 8.0, whole=False) == ()


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(1, 201))), 0.99) == 198.0
    assert percentile([7.0], 0.99) == 7.0


def test_the_summary_compares_each_side_with_whole_prompts() -> None:
    found = {
        "whole": Measured([Window((10.0,), (400.0, 10.0), 0.4, 512)]),
        "budget_64": Measured([Window((10.0,), (40.0, 10.0), 0.9, 512)], {"mixed": 64.0}),
    }
    line = summary(found, 512, 4, 2)
    assert (line["bench"], line["whole_over"]) == ("interference", {"budget_64": 10.0})
    sides = line["sides"]
    assert isinstance(sides, dict) and sides["budget_64"]["budget_tokens"] == 64.0


def test_sides_differ_in_the_budget_and_in_who_prefills() -> None:
    wanted = settings(parse(["--quick"]).budgets)
    names = ["whole", "budget_128", "chosen", "gap", "disaggregated"]
    assert [one.name for one in wanted] == names
    for one in wanted:
        built = topology(one, "model.gguf")
        assert built.group("prefill").count == (1 if one.name == "disaggregated" else 0)
        assert built.group("decode").get("step_tokens", -1) == one.step_tokens
        assert built.group("decode").get("step_policy", "") == one.policy
    assert wanted[0].step_tokens == WHOLE_TOKENS


@pytest.mark.parametrize("argv", [[], ["--quick"]])
def test_options_are_complete(argv: list[str]) -> None:
    options = parse(argv)
    assert options.prompt_tokens >= 1_024 and options.rounds >= 1
