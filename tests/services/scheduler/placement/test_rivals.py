"""Each published rule against the examples that its paper, its code or its critics give."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from services.scheduler.core.placement.registry import POLICIES
from services.scheduler.core.placement.rivals.dynamo import DynamoCost, DynamoSettings
from services.scheduler.core.placement.rivals.preble import PrebleE2, PrebleFlags
from shared.ids import Epoch, WorkerId
from shared.wire.blocks import BlocksStored
from tests.services.scheduler.builders import beat, names, placed
from tests.services.scheduler.placement.scenes import (
    CHAIN,
    add,
    cluster,
    core,
    fresh,
    links_carry,
    site,
    view,
    where,
    whole,
)

# token_s 1 ms, step_s 10 ms: 100 blocks of 16 tokens take 1.61 s to compute (builders.COST).


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_total_and_never_places_on_who_cannot(policy: str) -> None:
    machine = core(policy)
    for name in ("decode-0", "decode-1"):
        add(machine, name)
    add(machine, "decode-2", state="draining")
    add(machine, "decode-3", pages_free=2)
    add(machine, "decode-4", model="other")
    for name in ("prefill-0", "prefill-1"):
        add(machine, name, holds=20)
    add(machine, "prefill-2", layout="foreign", holds=100)
    add(machine, "prefill-3", state="stuck", holds=100)
    add(machine, "prefill-4", model="other", holds=100)
    used: Counter[str] = Counter()
    for number in range(40):
        placement = placed(machine, whole(f"r{number}", 30), 0.1 + number / 1000)
        assert placement.policy == policy
        used[where(placement)] += 1
        assert placement.decode.worker in ("decode-0", "decode-1")
        assert 0 <= placement.estimated_ttft_s < 60
        chosen = [c for c in placement.candidates if not c.lost]
        assert len(chosen) == 1 and placement.reason
        machine.handle(beat("prefill-0", sequence=number + 2), 0.1 + number / 1000)
    assert set(used) <= {"prefill-0", "prefill-1"}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_decides_alike_under_one_seed(policy: str) -> None:
    def run() -> list[str]:
        machine = cluster(policy, {f"prefill-{n}": (n * 10, n * 0.1) for n in range(5)})
        return [site(machine, whole(f"r{n}", 10 + n), 0.5 + n / 100) for n in range(20)]

    assert run() == run()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_a_cluster_without_prefill(policy: str) -> None:
    machine = core(policy)
    add(machine, "decode-0", holds=50)
    add(machine, "decode-1")
    assert placed(machine, whole(), 0.1).route == "colocated"


def test_round_robin_takes_turns() -> None:
    machine = cluster("round_robin", {f"prefill-{n}": (0, n * 1.0) for n in range(3)})
    assert [site(machine, fresh(f"r{n}", 4)) for n in range(6)] == [
        f"prefill-{n}" for n in (0, 1, 2, 0, 1, 2)
    ]


def test_random_reaches_everybody_and_power_of_two_the_shorter_of_two() -> None:
    machine = cluster("random", {f"prefill-{n}": (0, 0.0) for n in range(4)})
    assert len({site(machine, fresh(f"r{n}", 4)) for n in range(60)}) == 4
    machine = cluster("power_of_two", {f"prefill-{n}": (0, 0.0) for n in range(4)})
    counts = Counter(site(machine, fresh(f"r{n}", 4)) for n in range(200))
    assert max(counts.values()) - min(counts.values()) <= 12


def test_least_work_counts_seconds_and_longest_prefix_ignores_them() -> None:
    workers = {"prefill-0": (90, 3.0), "prefill-1": (10, 0.5)}
    assert site(cluster("least_work", workers), whole()) == "prefill-1"
    assert site(cluster("longest_prefix", workers), whole()) == "prefill-0"
    # 3.0 + .17 against .5 + 1.45
    assert site(cluster("local_ttft", workers), whole()) == "prefill-1"


def test_a_session_hash_keeps_a_session_and_moves_few_when_one_leaves() -> None:
    def homes(count: int) -> dict[int, str]:
        machine = cluster("session_hash", {f"prefill-{n}": (0, 0.0) for n in range(count)})
        return {
            key: site(machine, whole(f"{key}-{count}", 4, affinity_key=f"session {key}"))
            for key in range(40)
        }

    eight, seven = homes(8), homes(7)
    assert homes(8) == eight
    stayed = [key for key in eight if eight[key] != "prefill-7"]
    assert all(seven[key] == eight[key] for key in stayed)


def test_dynamo_adds_prefill_tokens_and_decode_blocks_as_if_equal() -> None:
    """Its documented example: block 64, request of 10 blocks; A: 2 cached, 10 active; B: 5 and 5;
    C: 8 and 9 -> 18, 10, 11, so B. And with weight 2 on prefill, C."""
    cases = {"A": (2, 10), "B": (5, 5), "C": (8, 9)}

    def least(weight: float) -> str:
        rule = DynamoCost(random.Random(1), DynamoSettings(prefill_weight=weight))
        costs = {
            name: rule.cost(prefill=0, incoming=10, hits=hits, decode=active)
            for name, (hits, active) in cases.items()
        }
        return min(costs, key=lambda name: costs[name])

    rule = DynamoCost(random.Random(1))
    costs = [rule.cost(0, 10, hits, active) - 10 for hits, active in cases.values()]
    assert costs == [18, 10, 11]
    assert least(1.0) == "B" and least(2.0) == "C"
    product = DynamoCost(random.Random(1), lmetric=True)
    assert product.cost(0, 10, 8, 9) == 20 and product.cost(0, 10, 5, 5) == 30


def test_dynamo_gives_reuse_away_for_a_few_decode_blocks() -> None:
    """The weakness: 30 blocks of reuse lose against 40 blocks that decode anyway."""
    machine = core("dynamo_cost")
    add(machine, "decode-0", holds=30, pages_free=960)
    add(machine, "decode-1", pages_free=1000)
    assert where(placed(machine, whole("r", 40), 0.5)) == "decode-1"
    baton = core("baton")
    add(baton, "decode-0", holds=30, pages_free=960)
    add(baton, "decode-1", pages_free=1000)
    assert where(placed(baton, whole("r", 40), 0.5)) == "decode-0"


def test_sglang_follows_a_third_of_a_match_until_queues_differ_widely() -> None:
    machine = core("sglang_cache_aware")
    add(machine, "decode-0")
    add(machine, "prefill-0", holds=31)
    add(machine, "prefill-1")
    assert site(machine, whole()) == "prefill-0"
    # 29 % of the prompt is no match: the smaller tree
    machine = core("sglang_cache_aware")
    add(machine, "decode-0")
    add(machine, "prefill-0", holds=29)
    add(machine, "prefill-1")
    assert site(machine, whole()) == "prefill-1"
    # more than 64 apart and more than 1.5 times as long: the shorter queue
    machine = core("sglang_cache_aware")
    add(machine, "decode-0")
    add(machine, "prefill-0", holds=90, running=70)
    add(machine, "prefill-1", running=5)
    assert site(machine, whole()) == "prefill-1"


def test_sglang_sends_sixty_clients_of_one_prefix_to_one_worker() -> None:
    """Reported: 600/0/0/0 with 60 in flight, since the guard wants a difference of 64."""
    machine = core("sglang_cache_aware")
    add(machine, "decode-0", pages_total=10**6, pages_free=10**6)
    for number in range(4):
        add(machine, f"prefill-{number}", holds=90 if number == 0 else 0)
    counts = Counter(site(machine, whole(f"r{n}", 100)) for n in range(60))
    assert counts == {"prefill-0": 60}


def test_mooncake_copies_when_the_best_match_is_more_than_twice_its_own() -> None:
    machine = cluster(
        "mooncake_conductor",
        {"prefill-0": (100, 5.0), "prefill-1": (40, 0.0), "prefill-2": (60, 0.0)},
    )
    links_carry(machine, 1e9)
    ranked = machine.deciding.placer.policy.decide(
        view(machine, whole()), machine.deciding.placer._split(view(machine, whole()), 16)[1]
    )
    by_name = {option.site.report.worker: option for option in ranked.options}
    # 100/40 > 2: charged for copying 60 blocks of 360 KiB at 1 GB/s and computing 1 token.
    copied = by_name["prefill-1"]
    assert copied.fetch is not None and copied.fetch.blocks == 60
    assert copied.score == pytest.approx(0.001 + 60 * 360 * 1024 / 1e9 + 0.011, rel=1e-3)
    # 100/60 < 2: computes its own 40 blocks.
    assert by_name["prefill-2"].fetch is None
    assert by_name["prefill-2"].score == pytest.approx(0.010 + 0.001 * 641, rel=1e-6)
    assert ranked.chosen is copied


def test_mooncake_always_transfers_to_who_has_nothing() -> None:
    """Its weakness: p = 0 makes the ratio infinite, however short the match."""
    machine = cluster("mooncake_conductor", {"prefill-0": (1, 9.0), "prefill-1": (0, 0.0)})
    placement = placed(machine, whole(), 0.5)
    assert where(placement) == "prefill-1" and placement.fetch_blocks == 1


def test_llmd_weighs_ratios() -> None:
    machine = core("llmd_scorers")
    add(machine, "decode-0")
    add(machine, "prefill-0", holds=100, running=10)
    add(machine, "prefill-1", running=0)
    # 3 * 1 + 2 * 0 + 2 * 1 against 0 + 2 + 2
    placement = placed(machine, whole(), 0.5)
    assert where(placement) == "prefill-0"
    assert [round(c.score_s, 6) for c in placement.candidates] == [-5.0, -4.0]


# -- Preble --------------------------------------------------------------------------------------


def test_preble_exploits_when_more_is_cached_than_missing() -> None:
    workers = {"prefill-0": (51, 9.0), "prefill-1": (0, 0.0)}
    assert site(cluster("preble_e2", workers), whole()) == "prefill-0", "load is not looked at"
    workers = {"prefill-0": (49, 0.0), "prefill-1": (0, 0.0)}
    machine = cluster("preble_e2", workers)
    assert "explores" in placed(machine, whole(), 0.5).reason


def test_preble_counts_all_work_of_three_minutes_done_or_not() -> None:
    machine = cluster("preble_e2", {"prefill-0": (0, 0.0), "prefill-1": (0, 0.0)})
    first = site(machine, fresh("r1", 50, 1000))
    assert site(machine, fresh("r2", 10, 3000), 100.0) != first, "long done, still counted"
    rule = machine.deciding.placer.policy._rule
    request = fresh("r3", 10, 5000)
    worker = machine.cluster.get(first)
    assert rule.cost(view(machine, request, 100.0), worker) > 0.5
    assert rule.cost(view(machine, request, 181.0), worker) == pytest.approx(0.171)


def test_preble_rebalances_at_half_more_and_the_flag_turns_it_off() -> None:
    for rebalance, expected in ((True, "prefill-1"), (False, "prefill-0")):
        machine = cluster("preble_e2", {"prefill-0": (90, 0.0), "prefill-1": (0, 0.0)})
        rule = PrebleE2(PrebleFlags(rebalance=rebalance, replicate=False, pd_aware=False))
        machine.deciding.placer.policy._rule = rule
        for number in range(3):
            request = whole(f"r{number}", 100)
            placed(machine, request, 0.5)
        # 3 requests of .17 s + their decoding weigh more than 1.5 times 1.61 s?
        heavy = machine.cluster.get("prefill-0")
        while rule.cost(view(machine, whole()), heavy) < 1.5 * 1.7:
            number += 1
            placed(machine, whole(f"r{number}", 100), 0.5)
        assert site(machine, whole("last")) == expected


def test_preble_never_forgets_its_window_but_bounds_it() -> None:
    rule = PrebleE2()
    machine = cluster("preble_e2", {"prefill-0": (0, 0.0)})
    machine.deciding.placer.policy._rule = rule
    for number in range(50):
        placed(machine, fresh(f"r{number}", 40, 1000 * number + 1000), number * 10.0)
        machine.handle(beat("prefill-0", sequence=number + 2), number * 10.0)
        machine.handle(
            beat("decode-0", sequence=number + 2, pages_total=10_000, pages_free=10_000),
            number * 10.0,
        )
    (window,) = rule._windows.values()
    assert len(window.jobs) <= 19 and len(window.blocks) <= 1000
    assert window.prefill_s == pytest.approx(sum(job[1] for job in window.jobs))


def test_baton_spreads_what_sglang_piles_up() -> None:
    """One prefix for all, at four fifths of what four workers can do: nobody gets more than a
    fifth above the mean, and nearly all of the prompt is cached."""
    machine = core("baton")
    names_ = [f"prefill-{number}" for number in range(4)]
    add(machine, "decode-0", pages_total=10**6, pages_free=10**6)
    for name in names_:
        add(machine, name, holds=90 if name == "prefill-0" else 0)
    free_at = dict.fromkeys(names_, 0.0)
    counts: Counter[str] = Counter()
    stored = Counter({"prefill-0": 1})
    cached = 0
    for number in range(500):
        now = 0.5 + number * 0.171 / 4 / 0.8
        for name in names_:
            left_s = max(0.0, free_at[name] - now)
            seen = machine.deciding.sequence
            report = beat(name, sequence=number + 2, work_left_s=left_s, placement_sequence=seen)
            machine.handle(report, now)
        tail = names(*range(1000 * number + 1000, 1000 * number + 1010))
        hot = dataclasses.replace(whole(f"r{number}"), block_hashes=CHAIN[:90] + tail)
        placement = placed(machine, hot, now)
        name = where(placement)
        work_s = 0.01 + 0.001 * (1601 - 16 * placement.cached_blocks)
        free_at[name] = max(now, free_at[name]) + work_s
        if number >= 200:
            counts[name] += 1
            cached += placement.cached_blocks
        stored[name] += 1
        machine.handle(_stored(name, stored[name]), now)
    assert max(counts.values()) <= 1.2 * 75
    assert cached >= 0.95 * 90 * 300


def _stored(worker: str, sequence: int) -> BlocksStored:
    """The worker has the prefix now (again)."""
    return BlocksStored(WorkerId(worker), Epoch(1), sequence, "device", None, CHAIN[:90])
