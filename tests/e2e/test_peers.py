"""Blocks from one prefill worker to another, on real processes without a pool: the link is cheaper
than computing them again, and than waiting for who has them.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.test_paths import BLOCK, ask, prompt

pytestmark = pytest.mark.process

_WISH = Wish(
    prefill=2,
    kvpool=0,
    settings={"scheduler": {"route": "disaggregated"}, "prefill": {"pace": "5,6,5,1"}},
)
"""A prompt token takes 6 ms: a tail keeps a worker busy for a second."""
_HEAD, _TAIL = 320, 160


async def test_an_idle_worker_copies_the_blocks_of_a_busy_one(tmp_path: Path) -> None:
    head = prompt(_HEAD)
    tails = [prompt(_TAIL, seed=seed) for seed in range(1, 4)]
    async with running_cluster(tmp_path, _WISH) as cluster:
        await ask(cluster, head)
        await _until_indexed(cluster, _HEAD // BLOCK)
        answers = await asyncio.gather(*(ask(cluster, [*head, *tail]) for tail in tails))
        assert [answer.cached_tokens for answer in answers] == [_HEAD] * len(tails)
        told = [await cluster.metrics(name) for name in ("prefill-0", "prefill-1")]
        assert sorted(_blocks(page, "from_peers") for page in told) == [0, _HEAD // BLOCK]
        assert sorted(_blocks(page, "lent") for page in told) == [0, _HEAD // BLOCK]
        await cluster.until_nothing_is_held()


async def _until_indexed(cluster: TestCluster, blocks: int) -> None:
    """The scheduler knows that somebody has so many."""
    async with asyncio.timeout(20):
        while (await _index(cluster)) < blocks:  # noqa: ASYNC110 - the scheduler tells nobody
            await asyncio.sleep(0.05)


async def _index(cluster: TestCluster) -> float:
    found = re.search(r"^baton_index_blocks (\S+)$", await cluster.metrics("scheduler-0"), re.M)
    return float(found[1]) if found else 0.0


def _blocks(page: str, direction: str) -> int:
    name = re.escape(f'baton_prefill_pool_blocks_total{{direction="{direction}"}}')
    found = re.search(rf"^{name} (\S+)$", page, re.M)
    return int(float(found[1])) if found else 0
