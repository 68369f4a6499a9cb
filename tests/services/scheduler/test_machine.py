"""The scheduler's core: placement, charges, epochs, losses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from services.scheduler.core.events import (
    AskSnapshot,
    BusLost,
    BusRestored,
    Declare,
    Tick,
)
from services.scheduler.core.machine import SchedulerMachine
from shared.ids import Attempt, Epoch, RequestId, WorkerId
from shared.wire.blocks import BlocksStored
from shared.wire.requests import PlacementEnded, Refused, WorkerRef
from tests.services.scheduler.builders import answer, ask, beat, machine, names, placed


def cluster_of(*workers: str) -> SchedulerMachine:
    core = machine()
    for worker in workers:
        core.handle(beat(worker), 0.0)
    return core


def test_a_pair_is_placed_with_reasons() -> None:
    core = cluster_of("prefill-0", "decode-0", "kvpool-0")
    placement = placed(core, ask(), 0.5)
    assert placement.route == "disaggregated"
    assert placement.prefill is not None and placement.prefill.worker == "prefill-0"
    assert placement.kvpool is not None and placement.kvpool.worker == "kvpool-0"
    (candidate,) = placement.candidates
    assert candidate.terms.keys() == {
        *("wait_s", "prefill_s", "exposed_s", "slowdown_s"),
        *("later_s", "evict_s", "link_s", "spill_s", "queue_s"),
    }
    assert placement.policy == "baton" and candidate.lost == ""
    assert abs(candidate.score_s - sum(candidate.terms.values())) < 1e-5
    assert placement.estimated_ttft_s > 0.1
    assert "least score" in core.story(RequestId("r1"))


@pytest.mark.parametrize("priority", [-(10**18), -101, 101, 10**18])
def test_a_forged_priority_is_placed_like_the_nearest_one(priority: int) -> None:
    core = cluster_of("prefill-0", "decode-0")
    forged = placed(core, replace(ask(), priority=priority), 0.5)
    assert forged.decode.worker == "decode-0"


def test_the_worker_with_the_prefix_wins_while_it_is_not_busy() -> None:
    core = cluster_of("prefill-0", "prefill-1", "decode-0")
    stored = BlocksStored(WorkerId("prefill-1"), Epoch(1), 1, "device", None, names(1, 2, 3, 4))
    core.handle(stored, 0.1)
    request = ask(hashes=names(1, 2, 3, 4, 5, 6))
    first = placed(core, request, 0.2)
    assert first.prefill is not None and first.prefill.worker == "prefill-1"
    assert first.cached_blocks == 4
    core.handle(beat("prefill-1", sequence=2, work_left_s=5.0), 0.3)
    second = placed(core, ask("r2", hashes=names(1, 2, 3, 4, 9, 10)), 0.3)
    assert second.prefill is not None and second.prefill.worker == "prefill-0"


def test_the_last_token_is_never_counted_as_cached() -> None:
    core = cluster_of("prefill-0", "decode-0")
    stored = BlocksStored(WorkerId("prefill-0"), Epoch(1), 1, "device", None, names(1, 2))
    core.handle(stored, 0.1)
    assert placed(core, ask(tokens=32, hashes=names(1, 2)), 0.2).cached_blocks == 1


def test_a_prompt_that_decode_has_cached_is_colocated() -> None:
    core = cluster_of("prefill-0", "decode-0")
    stored = BlocksStored(WorkerId("decode-0"), Epoch(1), 1, "device", None, names(1, 2, 3))
    core.handle(stored, 0.1)
    placement = placed(core, ask(tokens=50, hashes=names(1, 2, 3)), 0.2)
    assert placement.route == "colocated" and placement.prefill is None


def test_routes_are_obeyed_and_a_missing_prefill_is_said() -> None:
    core = cluster_of("decode-0")
    assert placed(core, ask("a"), 0.1).route == "colocated"
    refused = answer(core, ask("b", route="disaggregated"), 0.1)
    assert isinstance(refused, Refused) and refused.code == "no_worker"
    forced = machine(route="colocated")
    forced.handle(beat("prefill-0"), 0.0)
    forced.handle(beat("decode-0"), 0.0)
    assert placed(forced, ask(), 0.1).route == "colocated"


def test_equal_workers_share_the_load() -> None:
    core = cluster_of("prefill-0", "prefill-1", "prefill-2", "decode-0", "decode-1")
    used: Counter[str] = Counter()
    for number in range(60):
        placement = placed(core, ask(f"r{number}"), 0.1)
        assert placement.prefill is not None
        used[placement.prefill.worker] += 1
    assert set(used) == {"prefill-0", "prefill-1", "prefill-2"}
    assert max(used.values()) - min(used.values()) <= 2


def test_charges_end_with_the_report_the_attempt_the_epoch_and_a_few_beats() -> None:
    core = cluster_of("prefill-0", "decode-0")
    first = placed(core, ask("a"), 0.1)
    placed(core, ask("b"), 0.1)
    assert core.cluster.charges() == 4
    core.handle(beat("prefill-0", sequence=2, placement_sequence=first.sequence), 0.2)
    assert core.cluster.charges() == 3
    core.handle(PlacementEnded(RequestId("a"), Attempt(1), "finished"), 0.3)
    assert core.cluster.charges() == 2
    core.handle(PlacementEnded(RequestId("a"), Attempt(1), "finished"), 0.3)
    core.handle(beat("decode-0", epoch=2), 0.4)
    assert core.cluster.charges() == 1
    core.handle(beat("prefill-0", sequence=3), 4.0)
    core.handle(Tick(), 4.0)
    assert core.cluster.charges() == 1
    core.handle(Tick(), 4.2)
    assert core.cluster.charges() == 0, "its gateway died before it sent the job"
    core.check()


def test_the_same_attempt_asked_twice_is_placed_once() -> None:
    core = cluster_of("prefill-0", "prefill-1", "decode-0", "decode-1")
    assert placed(core, ask(), 0.1) == placed(core, ask(), 0.2)
    assert core.cluster.charges() == 2
    newer = placed(core, ask(attempt=2), 0.3)
    assert newer.attempt == 2 and core.cluster.charges() == 2
    stale = answer(core, ask(attempt=1), 0.4)
    assert isinstance(stale, Refused) and stale.code == "stale"


def test_a_silent_worker_is_declared_lost_once_and_not_used() -> None:
    core = cluster_of("prefill-0", "decode-0", "decode-1")
    for name in ("prefill-0", "decode-1"):
        core.handle(beat(name, sequence=2), 2.9)
    (declared,) = core.handle(Tick(), 3.5)
    assert isinstance(declared, Declare)
    assert declared.lost.worker == "decode-0" and declared.lost.cause == "silent"
    assert core.handle(Tick(), 3.6) == []
    assert placed(core, ask(), 3.7).decode.worker == "decode-1"


def test_nobody_is_declared_lost_while_the_bus_is_down_or_just_after() -> None:
    core = cluster_of("prefill-0", "decode-0")
    core.handle(BusLost(), 1.0)
    assert core.handle(Tick(), 30.0) == []
    core.handle(BusRestored(), 30.0)
    for now in (31.0, 32.0, 32.9):
        assert core.handle(Tick(), now) == []
    assert len(core.handle(Tick(), 33.1)) == 2


def test_a_new_epoch_replaces_the_old_and_old_beats_are_refused() -> None:
    core = cluster_of("prefill-0", "decode-0")
    (declared,) = core.handle(beat("decode-0", epoch=2), 1.0)
    assert isinstance(declared, Declare) and declared.lost.epoch == 1
    core.handle(beat("decode-0", epoch=1, sequence=9), 1.1)
    assert core.counts["stale_heartbeats"] == 1
    assert placed(core, ask("r2"), 1.4).decode.epoch == 2


def test_a_restarted_scheduler_takes_a_newer_epoch_from_a_heartbeat() -> None:
    core = cluster_of("decode-0")
    actions = core.handle(beat("decode-0", epoch=3, sequence=1), 0.5)
    assert [type(action) for action in actions] == [Declare]
    assert placed(core, ask(), 0.6).decode.epoch == 3


def test_failed_incarnations_are_avoided_until_they_beat_again() -> None:
    core = cluster_of("prefill-0", "decode-0", "decode-1")
    bad = WorkerRef(WorkerId("decode-0"), Epoch(1), "plane:decode-0")
    for attempt in range(2, 12):
        assert placed(core, ask(attempt=attempt, excluded=(bad,)), 0.1).decode.worker == "decode-1"
    lone = cluster_of("decode-0")
    lone.handle(PlacementEnded(RequestId("r1"), Attempt(1), "failed", (bad,)), 0.1)
    assert isinstance(answer(lone, ask(attempt=2, excluded=(bad,)), 0.2), Refused)
    lone.handle(beat("decode-0", sequence=2), 0.3)
    assert placed(lone, ask(attempt=2, excluded=(bad,)), 0.4).decode.worker == "decode-0"


def test_a_doubt_of_all_workers_is_waited_for_and_no_outage() -> None:
    core = cluster_of("decode-0")
    bad = placed(core, ask(), 0.0).decode
    core.handle(PlacementEnded(RequestId("r1"), Attempt(1), "failed", (bad,)), 0.1)
    reply = answer(core, ask("r2"), 0.2)
    assert isinstance(reply, Refused) and (reply.code, reply.retry_after_s) == ("loading", 0.5)
    assert core.servable() == (ask().model_digest,)
    core.handle(beat("decode-0", sequence=2), 0.3)
    assert placed(core, ask("r2"), 0.4).decode == bad
    core.handle(beat("decode-0", sequence=3, state="draining"), 0.5)
    assert core.servable() == ()


def test_draining_full_and_foreign_workers_get_nothing() -> None:
    core = machine()
    core.handle(beat("decode-0", state="draining"), 0.0)
    reply = answer(core, ask(), 0.1)
    assert isinstance(reply, Refused) and reply.code == "no_worker"
    core.handle(beat("decode-1", pages_free=3), 0.0)
    reply = answer(core, ask(), 0.1)
    assert isinstance(reply, Refused) and reply.code == "kv_pages_exhausted"
    assert reply.retry_after_s is not None
    reply = answer(core, ask(tokens=20_000), 0.1)
    assert isinstance(reply, Refused) and reply.retry_after_s is None
    reply = answer(core, ask(model="other"), 0.1)
    assert isinstance(reply, Refused) and reply.code == "incompatible_workers"


def test_nobody_yet_means_loading_until_everybody_could_be_heard() -> None:
    core = machine(settled_at=1.5)
    reply = answer(core, ask(), 1.0)
    assert isinstance(reply, Refused) and (reply.code, reply.retry_after_s) == ("loading", 1.0)
    reply = answer(core, ask(), 1.5)
    assert isinstance(reply, Refused) and reply.code == "no_worker"


def test_incompatible_layouts_are_never_paired() -> None:
    core = machine()
    core.handle(beat("prefill-0", layout="a"), 0.0)
    core.handle(beat("decode-0", layout="b"), 0.0)
    reply = answer(core, ask(route="disaggregated"), 0.1)
    assert isinstance(reply, Refused) and reply.code == "incompatible_workers"
    assert placed(core, ask("r2"), 0.1).route == "colocated"


def test_an_unreachable_pair_is_avoided_for_a_while() -> None:
    core = cluster_of("prefill-0", "prefill-1", "decode-0")
    core.handle(beat("decode-0", sequence=2, peers_lost=("prefill-0",)), 0.1)
    for number in range(8):
        placement = placed(core, ask(f"r{number}"), 0.2)
        assert placement.prefill is not None and placement.prefill.worker == "prefill-1"


def test_a_pair_that_cannot_be_reached_now_is_no_reason_to_give_up() -> None:
    """The complaint passes; 'incompatible' would end the request for good."""
    core = cluster_of("prefill-0", "decode-0")
    core.handle(beat("decode-0", sequence=2, peers_lost=("prefill-0",)), 0.1)
    reply = answer(core, ask(route="disaggregated"), 0.2)
    assert isinstance(reply, Refused) and (reply.code, reply.retry_after_s) == ("no_worker", 1.0)
    assert placed(core, ask("r2", route="disaggregated"), 5.2).prefill is not None


def test_a_digest_that_differs_asks_for_a_snapshot() -> None:
    core = cluster_of("prefill-0")
    actions = core.handle(beat("prefill-0", sequence=2, blocks=(0, 1, f"{5:032x}")), 1.0)
    assert actions == [AskSnapshot(WorkerId("prefill-0"), "prefill", Epoch(1), 0)]
