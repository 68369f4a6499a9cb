"""What the live comparison of policies takes for an order, and for a prompt."""

from __future__ import annotations

from loadgen.bench_placement_live import WORKLOADS, Found, order, prompt, simulated


def found(live_s: float, simulated_s: float) -> Found:
    return Found(live_s, 0.5, simulated_s, 0.5, 0, 10)


def test_only_what_the_simulator_tells_apart_is_an_order() -> None:
    rows = {"a": found(2.0, 1.0), "b": found(1.0, 1.05), "c": found(4.0, 2.0), "d": found(3.0, 4.0)}
    assert order(rows) == (5, 4), "a and b are alike; d came before c"


def test_prompts_are_equal_where_blocks_are() -> None:
    one, two = prompt((1, 2, 3), 40, 7), prompt((1, 2, 4), 40, 7)
    assert len(one) == 40 and one[:32] == two[:32] and one[32:] != two[32:]
    assert all(33 <= token < 127 for token in one)


def test_the_simulated_side_answers_every_row() -> None:
    scaled = WORKLOADS[0]
    workload = scaled.workload(2.0, 1)
    rows = simulated(scaled, workload, "round_robin")
    assert [row.number for row in rows] == list(range(len(workload)))
    assert all(row.ok for row in rows)
