"""Pages on the move: who lends blocks to whom, and whose card is free."""

from __future__ import annotations

import dataclasses

import pytest

from services.scheduler.core.cards import Flow
from services.scheduler.core.plausible import MOST_PAGES
from shared.ids import WorkerId
from shared.wire.requests import PlacementEnded
from shared.wire.workers import MOST_READING, Reading
from tests.services.scheduler.builders import beat, placed
from tests.services.scheduler.placement.scenes import (
    add,
    cluster,
    core,
    fresh,
    links_carry,
    view,
    where,
    whole,
)


def test_who_waits_long_lends_its_blocks_to_who_is_idle() -> None:
    """The cheapest of computing them, waiting for them, and copying them over the link there is."""
    workers = {"prefill-0": (100, 1.9), "prefill-1": (0, 0.0)}
    placement = placed(cluster("baton", workers), whole(), 0.5)
    assert where(placement) == "prefill-1" and placement.fetch_blocks == 100
    assert placement.fetch_from is not None and placement.fetch_from.worker == "prefill-0"
    assert placement.estimated_ttft_s < 0.1
    slow = cluster("baton", workers)
    links_carry(slow, 1e6)
    assert where(placed(slow, whole(tpot_slo_s=60.0), 0.5)) == "prefill-0"
    idle = cluster("baton", {"prefill-0": (100, 0.0), "prefill-1": (0, 0.0)})
    placement = placed(idle, whole(), 0.5)
    assert where(placement) == "prefill-0" and placement.fetch_from is None


def test_nothing_is_copied_from_whom_it_cannot_be_copied() -> None:
    """Another layout; a peer that the reader complained of; blocks that a peer will have soon."""
    workers = {"prefill-0": (100, 1.9), "prefill-1": (0, 0.0)}
    other = cluster("baton", {"prefill-1": (0, 0.0)})
    add(other, "prefill-0", holds=100, wait_s=1.9, layout="other")
    assert placed(other, whole(), 0.5).fetch_from is None
    cut = cluster("baton", workers)
    cut.handle(beat("prefill-1", sequence=2, peers_lost=("prefill-0",)), 0.4)
    assert placed(cut, whole(), 0.5).fetch_from is None
    soon = cluster("baton", {"prefill-0": (0, 0.0), "prefill-1": (0, 5.0)})
    first = placed(soon, whole("r1"), 0.5)
    assert where(first) == "prefill-0"
    soon.handle(beat("prefill-1", sequence=2), 0.6)
    assert placed(soon, whole("r2"), 0.6).fetch_from is None


def test_pages_go_where_both_cards_are_free() -> None:
    """Engines are idle all along: who has to send or to receive for long is left alone."""
    machine = core("baton")
    links_carry(machine, 1e6)
    for name in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
        add(machine, name)
    seen = []
    for number in range(4):
        found = placed(machine, fresh(f"r{number}", 20, first=10_000 + 100 * number), 0.5)
        assert found.prefill is not None
        seen.append((found.prefill.worker, found.decode.worker))
        machine.handle(PlacementEnded(found.request, found.attempt, "finished", emitted=1), 0.5)
    assert len(set(seen[:2])) == 2 and {p for p, _ in seen[:2]} == {"prefill-0", "prefill-1"}
    assert {d for _, d in seen[:2]} == {"decode-0", "decode-1"}
    terms = [c.terms for c in placed(machine, fresh("r9", 20, first=20_000), 0.5).candidates]
    assert all(found["queue_s"] > 0.0 for found in terms)


def test_beyond_its_objective_an_answer_is_hastened_by_computing_beside_the_link() -> None:
    """The link takes most of a minute either way; pages that follow each chunk are there sooner."""
    workers = {"prefill-0": (100, 1.9), "prefill-1": (0, 0.0)}
    for tpot_slo_s, expected in ((60.0, "prefill-0"), (0.1, "prefill-1")):
        machine = cluster("baton", workers)
        links_carry(machine, 1e6)
        assert where(placed(machine, whole(tpot_slo_s=tpot_slo_s), 0.5)) == expected


def test_what_a_slow_card_has_to_carry_is_known_once_its_speed_is() -> None:
    """Ten reads of 37 MB were placed before anybody knew that the card carries 100 MB/s."""
    machine = cluster("baton", {"prefill-0": (0, 0.0)})
    for number in range(10):
        placed(machine, fresh(f"r{number}", 100, first=10_000 * (1 + number)), number / 100)
    unheard = view(machine, fresh("r10", 100), 0.1)
    assert unheard.receiving(WorkerId("decode-0")).seconds < 0.02
    links_carry(machine, 1e8)
    known = view(machine, fresh("r10", 100), 0.1)
    assert known.receiving(WorkerId("decode-0")).seconds == pytest.approx(3.6, rel=0.1)


def test_a_card_that_is_free_before_the_prompt_is_computed_delays_nothing() -> None:
    machine = cluster("baton", {"prefill-0": (0, 5.0)})
    machine.world.cards.placed(Flow(WorkerId("decode-0"), WorkerId("prefill-0"), 4e9, 0.5, 1))
    (found,) = placed(machine, whole(), 0.5).candidates
    assert found.terms["queue_s"] == 0.0 and found.terms["wait_s"] > 4.0


def test_what_readers_report_counts_and_not_what_was_once_placed() -> None:
    """A handoff that takes longer than anybody thought is still on its cards; one that is over is
    not, and neither is that of a worker that is gone."""
    machine = cluster("baton", {"prefill-0": (0, 0.0)})
    links_carry(machine, 1e9)
    decode, prefill = WorkerId("decode-0"), WorkerId("prefill-0")

    def told(sequence: int, pages: int, now: float) -> tuple[float, float]:
        report = beat("decode-0", sequence=sequence, placement_sequence=1)
        reading = (Reading(prefill, pages),) if pages else ()
        load = dataclasses.replace(report.load, reading=reading)
        machine.handle(dataclasses.replace(report, load=load, page_bytes=10**7), now)
        seen = view(machine, fresh("r", 10), now)
        return seen.receiving(decode).seconds, seen.sending(prefill).seconds

    placed(machine, fresh("r1", 100), 0.5)
    assert told(2, 500, 5.0) == pytest.approx((5.0, 5.0))
    assert told(3, 500, 9.0) == pytest.approx((5.0, 5.0))
    assert told(4, 0, 10.0) == (0.0, 0.0)
    assert told(5, 500, 11.0) == pytest.approx((5.0, 5.0))
    machine.handle(dataclasses.replace(beat("decode-0", sequence=6), state="ended"), 11.5)
    assert view(machine, fresh("r", 10), 11.5).sending(prefill).seconds == 0.0


def test_who_claims_to_read_what_nobody_can_is_cut() -> None:
    machine = cluster("baton", {"prefill-0": (0, 0.0)})
    report = beat("decode-0", sequence=2)
    reading = tuple(Reading(WorkerId(f"p{n}"), -5 if n else 1 << 60) for n in range(1_000))
    load = dataclasses.replace(report.load, reading=reading)
    machine.handle(dataclasses.replace(report, load=load), 1.0)
    known = machine.cluster.get(WorkerId("decode-0"))
    assert known is not None and len(known.report.load.reading) == MOST_READING
    assert [one.pages for one in known.report.load.reading[:2]] == [MOST_PAGES, 0]
