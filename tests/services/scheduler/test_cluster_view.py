"""What the leader tells operators: everybody with load and learnt costs, the hottest prefixes."""

from __future__ import annotations

from services.scheduler.cluster_view import cluster_seen
from services.scheduler.core.heat import Heat
from shared.ids import WorkerId
from shared.wire.codec import decode, encode
from shared.wire.views import MOST_PREFIXES_SEEN, MOST_WORKERS_SEEN, ClusterSeen
from tests.services.scheduler.builders import beat, names, placed
from tests.services.scheduler.placement.scenes import cluster, whole


def test_everybody_is_told_of_with_load_and_costs() -> None:
    machine = cluster("baton", {"prefill-0": (50, 0.0), "prefill-1": (0, 0.0)})
    machine.handle(beat("gateway-0", state="draining"), 0.5)
    placed(machine, whole(), 0.5)
    seen = cluster_seen(machine, WorkerId("scheduler-0"), 8, 2.0)
    assert decode(encode(seen)) == seen
    assert [worker.worker for worker in seen.workers] == [
        "decode-0", "gateway-0", "prefill-0", "prefill-1",
    ]  # fmt: skip
    by_name = {worker.worker: worker for worker in seen.workers}
    assert by_name["gateway-0"].state == "draining" and by_name["gateway-0"].age_s == 1.5
    assert by_name["prefill-0"].blocks == 50 and by_name["prefill-0"].cost.token_s > 0
    assert sum(worker.charged_tokens for worker in seen.workers) > 0
    assert seen.more_workers == 0 and seen.index_blocks == 50


def test_more_than_the_bound_are_only_counted() -> None:
    machine = cluster("baton", {"prefill-0": (0, 0.0)})
    for number in range(MOST_WORKERS_SEEN):
        machine.handle(beat(f"gateway-{number}"), 0.5)
    seen = cluster_seen(machine, WorkerId("scheduler-0"), 10_000, 1.0)
    assert len(seen.workers) == MOST_WORKERS_SEEN and seen.more_workers == 2
    assert isinstance(decode(encode(seen)), ClusterSeen)


def test_hot_prefixes_name_their_holders() -> None:
    machine = cluster("baton", {"prefill-0": (100, 0.0), "prefill-1": (0, 0.0)})
    for number in range(20):
        placed(machine, whole(f"r{number}"), 0.5 + number / 100)
    seen = cluster_seen(machine, WorkerId("scheduler-0"), MOST_PREFIXES_SEEN, 1.0)
    (hottest,) = seen.prefixes
    assert hottest.per_s > 0.5 and hottest.depth == 96
    assert [(holder.worker, holder.tier) for holder in hottest.holders] == [("prefill-0", "device")]
    assert cluster_seen(machine, WorkerId("scheduler-0"), 0, 1.0).prefixes == ()


def test_of_a_chain_only_the_branching_points_are_ranked() -> None:
    heat = Heat()
    trunk = names(*range(1, 9))
    for number in range(10):
        heat.arrive(
            trunk + names(*range(100 * number + 100, 100 * number + 108)), lambda depth: 0.1, 1.0
        )
    for _ in range(5):
        heat.arrive(names(*range(5_000, 5_004)), lambda depth: 0.1, 1.0)
    ranked = heat.ranked(1.0, 2)
    assert [(block, prefix.depth) for block, prefix in ranked] == [
        (trunk[-1], 8),
        (names(5_003)[0], 4),
    ]
    assert ranked[0][1].rate(1.0) > ranked[1][1].rate(1.0)
    assert len(heat.ranked(1.0, 100)) == 12
    assert heat.ranked(10_000.0, 2) == []
