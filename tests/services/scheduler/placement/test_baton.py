"""The default policy: what it weighs, what it explains, whom it sends away."""

from __future__ import annotations

import dataclasses

import pytest

from services.scheduler.core.flights import Flight, Flights, load_at, peak
from services.scheduler.core.heat import Heat
from services.scheduler.core.placement.weights import Weights
from shared.ids import Attempt, RequestId, WorkerId
from shared.wire.requests import Placement, PlacementEnded, PlaceRequest, Refused, WorkerRef
from shared.wire.workers import CostModel
from tests.services.scheduler.builders import answer, beat, placed
from tests.services.scheduler.placement.scenes import (
    add,
    cluster,
    core,
    fresh,
    links_carry,
    site,
    where,
    whole,
)


def test_affinity_is_a_discount_and_no_veto() -> None:
    """100 blocks take 1.61 s to compute: a wait below that is worth it, one above is not. (Half a
    second has passed since the report.)"""
    for wait_s, expected in ((1.9, "prefill-0"), (2.3, "prefill-1")):
        workers = {"prefill-0": (100, wait_s), "prefill-1": (0, 0.0)}
        assert site(cluster("baton", workers, peers=False), whole()) == expected


def test_reuse_weighs_against_waiting() -> None:
    """18 more blocks are worth 288 ms here, and what that work would delay others."""
    for wait_s, expected in ((0.2, "prefill-0"), (0.8, "prefill-1")):
        workers = {"prefill-0": (100, wait_s), "prefill-1": (82, 0.0)}
        assert where(placed(cluster("baton", workers), whole(), 0.5)) == expected


def test_between_equals_who_had_less_to_do_lately_is_taken() -> None:
    machine = cluster("baton", {f"prefill-{n}": (0, 0.0) for n in range(3)})
    for name in ("prefill-0", "prefill-2"):
        machine.world.paces.add(WorkerId(name), 1e-6, 0.4)
    assert where(placed(machine, whole(), 0.5)) == "prefill-1"


def test_every_candidate_but_the_chosen_one_says_why_it_lost() -> None:
    workers = {f"prefill-{n}": (10 * n, 0.3 * n) for n in range(4)}
    placement = placed(cluster("baton", workers, peers=False), whole(), 0.5)
    chosen = [c for c in placement.candidates if not c.lost]
    assert len(chosen) == 1 and len(placement.candidates) == 4
    for candidate in placement.candidates:
        assert candidate.score_s == pytest.approx(sum(candidate.terms.values()), abs=1e-4)
        assert candidate is chosen[0] or "ms" in candidate.lost


def test_blocks_come_from_the_pool_when_that_is_sooner() -> None:
    machine = cluster("baton", {"prefill-0": (0, 0.0)})
    add(machine, "kvpool-0", holds=100)
    placement = placed(machine, whole(), 0.5)
    assert placement.fetch_blocks == 100 and placement.estimated_ttft_s < 0.1
    assert placement.fetch_from is not None and placement.fetch_from.worker == "kvpool-0"
    slow = cluster("baton", {"prefill-0": (0, 0.0)})
    links_carry(slow, 1e7)
    add(slow, "kvpool-0", holds=100)
    placement = placed(slow, whole(), 0.5)
    assert placement.fetch_blocks == 0 and placement.estimated_ttft_s == pytest.approx(1.611)
    assert placement.kvpool is not None, "it may still take the blocks in"
    none = cluster("baton", {"prefill-0": (0, 0.0)}, fetch="none")
    add(none, "kvpool-0", holds=100)
    assert placed(none, whole(), 0.5).fetch_blocks == 0


def test_a_fetch_overlaps_the_wait() -> None:
    machine = cluster("baton", {"prefill-0": (0, 1.0)}, peers=True)
    links_carry(machine, 5e7)
    add(machine, "kvpool-0", holds=100)
    placement = placed(machine, whole(), 0.5)
    assert placement.fetch_blocks == 100
    assert placement.estimated_ttft_s == pytest.approx(1.0 - 0.5 + 0.2483 + 0.011, abs=0.02)


COSTS = CostModel(0.0181, 1.0191e-4, 7.12e-9, 0.01993, 3.85e-5)


@pytest.mark.parametrize(("bytes_per_s", "route"), [(25e9 / 8, "colocated"), (200e9 / 8, "")])
def test_a_slow_link_keeps_a_short_turn_on_decode(bytes_per_s: float, route: str) -> None:
    """OPT-13B on one GPU (13.1 MB a page), 16 streams, 64 new tokens after 1,500 that decode alone
    holds: local at 25 Gbit/s. (At 200 the published example goes remote by copying from decode.)"""
    machine = core("baton", split="baton_cost")
    links_carry(machine, bytes_per_s)
    for name, holds in (("decode-0", 94), ("prefill-0", 0)):
        report = add(machine, name, holds=holds, cost=COSTS, running=16 * (holds > 0))
        machine.handle(dataclasses.replace(report, sequence=2, page_bytes=13_107_200), 0.1)
    request = whole("r", 98)
    placement = placed(machine, request, 0.5)
    assert placement.route == (route or placement.route)
    assert len({c.prefill for c in placement.candidates}) == 2, "both were weighed"


def test_a_request_goes_where_its_pages_already_are() -> None:
    machine = cluster("baton", {"prefill-0": (0, 0.0)})
    add(machine, "decode-1", running=50)
    near = WorkerRef(WorkerId("decode-1"), beat("decode-1").epoch, "plane:decode-1")
    assert placed(machine, whole("a", near=near), 0.5).decode.worker == "decode-1"
    gone = dataclasses.replace(near, worker=WorkerId("decode-9"))
    other = dataclasses.replace(fresh("b", 4), near=gone)
    assert placed(machine, other, 0.5).decode.worker == "decode-0"


def test_a_session_returns_to_its_worker_while_that_meets_the_objective() -> None:
    machine = cluster("baton", {f"prefill-{n}": (0, 0.0) for n in range(6)})
    request = fresh("r0", 4, 1000)
    home = site(machine, dataclasses.replace(request, affinity_key="s"))
    for number in range(1, 8):
        machine.handle(beat(home, sequence=number + 1, placement_sequence=1 << 40), 0.5)
        again = dataclasses.replace(fresh(f"r{number}", 4, 9000 + 10 * number), affinity_key="s")
        assert site(machine, again, 0.6) == home
    machine.handle(beat(home, sequence=20, work_left_s=2.0, placement_sequence=1 << 40), 0.7)
    busy = dataclasses.replace(fresh("last", 4, 50_000), affinity_key="s")
    assert site(machine, busy, 0.7) != home


def test_priority_makes_others_count_less() -> None:
    """An urgent request takes the free worker although others then wait longer."""
    for priority, expected in ((0, "prefill-0"), (-100, "prefill-0"), (100, "prefill-1")):
        workers = {"prefill-0": (100, 3.1), "prefill-1": (0, 0.0)}
        machine = cluster("baton", workers, peers=False)
        for _ in range(3):
            machine.world.paces.add(WorkerId("prefill-1"), 1.0, 0.5)
        assert site(machine, whole("r", priority=priority)) == expected


# -- early rejection and fairness ----------------------------------------------------------------


def refused(reply: Placement | Refused) -> Refused:
    assert isinstance(reply, Refused)
    return reply


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    machine = cluster("baton", {"prefill-0": (0, 20.0)})
    late = refused(answer(machine, whole("a", deadline_s=5.0), 0.5))
    assert late.code == "deadline_unattainable" and late.retry_after_s == pytest.approx(
        16.1, abs=0.5
    )
    assert isinstance(answer(machine, whole("b", deadline_s=60.0), 0.5), Placement)
    begun = dataclasses.replace(whole("c", deadline_s=5.0), attempt=Attempt(2))
    assert isinstance(answer(machine, begun, 0.5), Placement), "a stream that has begun goes on"
    free = cluster("baton", {"prefill-0": (0, 20.0)}, admission="none")
    assert isinstance(answer(free, whole("a", deadline_s=5.0), 0.5), Placement)


def test_objectives_are_refused_only_where_somebody_named_them() -> None:
    machine = cluster("baton", {"prefill-0": (0, 3.0)})
    assert isinstance(answer(machine, whole("a"), 0.5), Placement)
    assert refused(answer(machine, whole("b", ttft_slo_s=0.5), 0.5)).code == "deadline_unattainable"
    strict = cluster("baton", {"prefill-0": (0, 3.0)}, objectives=True)
    assert refused(answer(strict, whole("c"), 0.5)).retry_after_s is not None


def test_admission_judges_the_load_of_the_time_when_prefill_ends() -> None:
    """Decode is full now but will have finished by then: `now` refuses, `predicted` takes it. And
    the other way round: idle now, with prefill about to deliver."""
    for rule, at_once in (("early_reject_predicted", True), ("early_reject_now", False)):
        machine = cluster("baton", {"prefill-0": (0, 0.0)}, admission=rule)
        flights = machine.world.flights
        for number in range(60):
            flights.add(flight(f"f{number}", starts_s=-2.0, max_tokens=100))
        report = beat("decode-0", sequence=2, running=60, pages_total=10_000, pages_free=10_000)
        machine.handle(report, 0.4)
        reply = answer(machine, whole("a", tpot_slo_s=0.05), 0.5)
        assert isinstance(reply, Placement) == at_once
        machine = cluster("baton", {"prefill-0": (0, 0.0)}, admission=rule)
        for number in range(60):
            machine.world.flights.add(flight(f"f{number}", starts_s=1.0, max_tokens=1000))
        load = dataclasses.replace(report.load, running_sequences=0, queued_requests=60)
        machine.handle(dataclasses.replace(report, load=load), 0.4)
        reply = answer(machine, whole("b", tpot_slo_s=0.05), 0.5)
        assert isinstance(reply, Placement) != at_once


def flight(name: str, *, starts_s: float, max_tokens: int) -> Flight:
    return Flight(
        request=RequestId(name),
        attempt=Attempt(1),
        decode=WorkerId("decode-0"),
        starts_s=starts_s,
        token_s=0.04,
        prompt_tokens=100,
        expected_tokens=max_tokens,
        max_tokens=max_tokens,
        expires=100.0,
    )


def test_the_future_peak_is_lightllms() -> None:
    assert peak([(100, 50)]) == 150
    assert peak([(100, 50), (200, 30)]) == 360
    assert peak([(100, 50), (200, 30), (150, 10)]) == 480


def test_flights_are_bounded_by_what_the_worker_reports() -> None:
    flights = Flights()
    for number in range(10):
        flights.add(flight(f"f{number}", starts_s=0.0, max_tokens=100))
    assert len(flights.believed(WorkerId("decode-0"), 3)) == 3
    assert flights.believed(WorkerId("decode-0"), 0) == []
    assert flights.worst_tokens(WorkerId("decode-0")) == 1000
    there = flights.believed(WorkerId("decode-0"), 10)
    assert load_at(there, 1.0, 0.0, lambda more, after: 0.5) == (5.0, 10 * 0.5 * 125)
    # Ten answers of which each is there with a half: 5 +- sqrt(10) / 2.
    likely = load_at(there, 1.0, 0.0, lambda more, after: 0.5, 2.0)
    assert likely == pytest.approx((5.0 + 10**0.5, (5.0 + 10**0.5) * 125))
    assert load_at(there, 1.0, 0.0, lambda more, after: 1.0, 2.0) == (10.0, 1250.0)
    flights.lost(WorkerId("decode-0"))
    assert len(flights) == 0 and flights.worst_tokens(WorkerId("decode-0")) == 0


def test_a_tenant_beyond_its_share_waits_outside_while_others_wait() -> None:
    def congested(wait_s: float) -> tuple[Placement | Refused, Placement | Refused]:
        machine = cluster("baton", {"prefill-0": (0, wait_s)})
        machine.world.tenants.add("greedy", 20.0, 0.4)
        machine.world.tenants.add("modest", 1.0, 0.4)
        greedy = answer(machine, whole("a", tenant="greedy"), 0.5)
        return greedy, answer(machine, whole("b", tenant="modest"), 0.5)

    greedy, modest = congested(5.0)
    assert refused(greedy).code == "queue_full" and refused(greedy).retry_after_s is not None
    assert isinstance(modest, Placement)
    assert all(isinstance(reply, Placement) for reply in congested(0.5))


def test_a_lone_tenant_has_everything() -> None:
    machine = cluster("baton", {"prefill-0": (0, 5.0)})
    for number in range(10):
        assert isinstance(answer(machine, whole(f"r{number}", tenant="one"), 0.5), Placement)


# -- hot prefixes --------------------------------------------------------------------------------


def storm(weights: Weights | None = None, seconds: float = 8.0) -> tuple[set[str], int]:
    """Twenty requests a second for one prefix that one of eight workers holds, over links of
    1 GB/s; each takes 71 ms of its own. Who served them, and copies made on purpose."""
    machine = core("baton", weights=weights)
    links_carry(machine, 1e9)
    add(machine, "decode-0", pages_total=10**6, pages_free=10**6)
    for number in range(8):
        add(machine, f"prefill-{number}", holds=100 if number == 0 else 0)
    used: set[str] = set()
    for number in range(int(20 * seconds)):
        now = 0.5 + number / 20
        for place in range(8):
            machine.handle(
                beat(f"prefill-{place}", sequence=number + 2, placement_sequence=1 << 60), now
            )
        hot = dataclasses.replace(whole(f"r{number}"), prompt_tokens=1661)
        used.add(site(machine, hot, now))
    return used, machine.deciding.placer.policy._copies.made


def test_a_cold_burst_meets_its_siblings_before_any_link_was_measured() -> None:
    """OPT-13B (13.1 MB a page): cards that were never heard of send nobody away from what is
    about to be cached."""
    machine = core("baton")
    for name in ("decode-0", "decode-1", *(f"prefill-{number}" for number in range(4))):
        report = add(machine, name, cost=COSTS)
        machine.handle(dataclasses.replace(report, sequence=2, page_bytes=13_107_200), 0.1)
    homes: dict[int, set[str]] = {}
    for number in range(16):
        family = number % 4
        prompt = fresh(f"r{number}", 60, 10_000 * (1 + family))
        homes.setdefault(family, set()).add(site(machine, prompt, 0.5 + number / 100))
    assert all(len(home) == 1 for home in homes.values()), homes
    assert len(set.union(*homes.values())) == 4


def test_a_hot_prefix_gets_a_copy_within_its_budget() -> None:
    used, made = storm()
    assert made >= 1 and len(used) >= 2
    used, made = storm(Weights(copy_pages_share=0.0))
    assert made == 0
    _, made = storm(Weights(copy_ratio=1e6))
    assert made == 0


def test_heat_is_bounded_and_finds_the_shared_part() -> None:
    heat = Heat()
    shared = whole().block_hashes[:50]
    for number in range(200):
        tail = fresh(f"r{number}", 50, 10_000 + 100 * number).block_hashes
        heat.arrive((*shared, *tail), lambda depth: 0.1, number / 20)
    found = heat.hottest((*shared, *fresh("x", 50, 9_000_000).block_hashes), 10.0)
    assert found is not None and found.depth == 48
    assert found.rate(10.0) == pytest.approx(20.0, rel=0.6)
    assert heat.hottest(fresh("y", 50, 9_500_000).block_hashes, 10.0) is None
    for number in range(3000):
        heat.arrive(fresh("z", 200, 10**7 + 1000 * number).block_hashes, lambda depth: 0.1, 10.0)
    assert len(heat) <= 16_384


def test_what_followers_waited_in_vain_is_remembered_for_a_while() -> None:
    heat, chain = Heat(), whole().block_hashes
    heat.arrive(chain, lambda depth: 0.1, 0.0)
    prefix = heat.hottest(chain, 0.0)
    assert prefix is not None and prefix.regret(0.0) == 0.0
    prefix.regrets(0.3, 0.0)
    prefix.regrets(0.2, 0.0)
    assert prefix.regret(0.0) == pytest.approx(0.5)
    assert prefix.regret(10.0) == pytest.approx(0.25)
    assert prefix.coming(30.0, 0.0) == 1.0, "no more than came"


# -- what may come in ----------------------------------------------------------------------------


def test_lying_and_impossible_reports_are_cut_and_counted() -> None:
    machine = cluster("baton", {"prefill-0": (0, 0.0)})
    bad = beat("prefill-1", work_left_s=float("nan"), pages_total=10, pages_free=10**9)
    machine.handle(bad, 0.1)
    machine.handle(dataclasses.replace(beat("prefill-2"), block_tokens=0), 0.1)
    machine.handle(beat("prefill-3", work_left_s=-5.0, running=-7), 0.1)
    assert machine.counts["beats_cut"] == 2 and machine.counts["beats_implausible"] == 1
    known = machine.cluster.get(WorkerId("prefill-1"))
    assert known is not None and known.report.load.pages_free == 10
    assert site(machine, whole()) in ("prefill-0", "prefill-3")


def test_a_worker_that_reports_no_work_but_is_slow_loses_its_appeal() -> None:
    machine = cluster("baton", {"prefill-0": (0, 0.0), "prefill-1": (0, 0.0)})
    used: list[str] = []
    for number in range(120):
        now = 0.5 + number
        for name in ("prefill-0", "prefill-1"):
            machine.handle(beat(name, sequence=number + 2, placement_sequence=1 << 60), now)
        machine.handle(
            beat(
                "decode-0",
                sequence=number + 2,
                pages_total=10_000,
                pages_free=10_000,
                placement_sequence=1 << 60,
            ),
            now,
        )
        placement = placed(machine, fresh(f"r{number}", 10, 10_000 + 20 * number), now)
        took_s = 2.0 if where(placement) == "prefill-0" else placement.estimated_ttft_s
        machine.handle(
            PlacementEnded(placement.request, Attempt(1), "finished", ttft_s=took_s), now
        )
        used.append(where(placement))
    assert machine.world.trust.factor(WorkerId("prefill-0")) > 1.05
    assert used[-50:].count("prefill-0") <= 5
    assert machine.world.trust.factor(WorkerId("prefill-1")) < 1.1


def test_a_clock_that_jumps_back_stands_still() -> None:
    machine = cluster("baton", {"prefill-0": (0, 0.0)})
    placed(machine, whole("a"), 100.0)
    placement = placed(machine, whole("b"), 3.0)
    assert machine.counts["clock_went_back"] >= 1 and placement.estimated_ttft_s >= 0


def test_a_foreign_block_size_or_model_holds_nothing_and_placement_goes_on() -> None:
    machine = core("baton")
    add(machine, "decode-0")
    report = add(machine, "prefill-0", holds=50)
    machine.handle(dataclasses.replace(report, sequence=2, block_tokens=64), 0.1)
    placement = placed(machine, whole(), 0.5)
    assert placement.cached_blocks == 0 and machine.counts["block_size_mismatch"] == 1
    other: PlaceRequest = whole("x", model_digest="nobody's")
    assert refused(answer(machine, other, 0.5)).code == "incompatible_workers"


def test_thousands_of_names_are_followed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.scheduler.core.cluster.MOST_WORKERS", 50)
    machine = core("baton")
    add(machine, "decode-0")
    for number in range(200):
        machine.handle(beat(f"prefill-{number}"), 0.1)
    assert len(list(machine.cluster)) == 50 and machine.cluster.beyond == 151
    assert isinstance(answer(machine, whole(), 0.5), Placement)
    assert Weights(tie_s=float("nan")).unsound().startswith("tie_s") and not Weights().unsound()
