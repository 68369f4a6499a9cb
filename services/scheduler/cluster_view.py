"""The cluster as the leading scheduler sees it, for the operators' pages: one bounded message."""

from __future__ import annotations

from itertools import islice

from services.scheduler.core.cluster import Worker
from services.scheduler.core.machine import SchedulerMachine
from services.scheduler.core.placement.baton import Baton
from shared.ids import Epoch, WorkerId
from shared.wire.views import (
    MOST_HOLDERS_SEEN,
    MOST_PREFIXES_SEEN,
    MOST_WORKERS_SEEN,
    ClusterSeen,
    Holder,
    PrefixSeen,
    WorkerSeen,
)
from shared.wire.workers import CostModel


def cluster_seen(
    core: SchedulerMachine, leader: WorkerId, prefixes: int, now: float
) -> ClusterSeen:
    """Workers by name, the hottest prefixes first."""
    everybody = sorted(core.cluster, key=lambda w: (w.report.role, w.report.worker))
    return ClusterSeen(
        leader=leader,
        leader_epoch=Epoch(core.roster.leader_epoch),
        workers=tuple(_worker(core, w, now) for w in everybody[:MOST_WORKERS_SEEN]),
        more_workers=max(0, len(everybody) - MOST_WORKERS_SEEN),
        prefixes=_prefixes(core, min(max(0, prefixes), MOST_PREFIXES_SEEN), now),
        index_blocks=core.index.blocks,
        index_bytes=core.index.size_bytes,
    )


def _worker(core: SchedulerMachine, worker: Worker, now: float) -> WorkerSeen:
    beat = worker.report
    learnt = core.world.learned.costs(beat)
    return WorkerSeen(
        worker=beat.worker,
        role=beat.role,
        epoch=beat.epoch,
        state="suspected" if worker.suspected else beat.state,
        age_s=max(0.0, now - worker.seen),
        model_digest=beat.model_digest,
        page_bytes=beat.page_bytes,
        block_tokens=beat.block_tokens,
        load=beat.load,
        cost=CostModel(
            learnt.step_s,
            learnt.token_s,
            learnt.pair_s,
            learnt.decode_step_s,
            learnt.decode_sequence_s,
        ),
        charged_tokens=worker.charged_tokens,
        blocks=core.index.listed(beat.worker),
        turning=beat.turning,
    )


def _prefixes(core: SchedulerMachine, most: int, now: float) -> tuple[PrefixSeen, ...]:
    """Empty under a policy that watches none."""
    policy = core.deciding.placer.policy
    if not isinstance(policy, Baton) or not most:
        return ()
    return tuple(
        PrefixSeen(
            block=block,
            depth=prefix.depth,
            per_s=prefix.rate(now),
            copies=prefix.made,
            holders=tuple(
                Holder(worker, tier)
                for worker, tier in islice(core.index.holders(block), MOST_HOLDERS_SEEN)
            ),
        )
        for block, prefix in policy.hottest(now, most)
    )
