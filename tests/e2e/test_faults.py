"""Deaths and outages under eight streams on real processes: the clients notice nothing but time.

Every stream must end with the tokens of an undisturbed run, and afterwards nobody may hold
anything, and each request must have left a whole trace. The engine is the weightless one, so a
wrong page would be a wrong token.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.streams import Answer
from tests.e2e.traces import until_whole

pytestmark = pytest.mark.process

STREAMS = 8
OUTPUT = 1500
ROUTE = {"route": "disaggregated"}

Fault = Callable[[TestCluster], Awaitable[None]]


def prompt(number: int) -> list[int]:
    chance = random.Random(number)
    return [chance.randrange(32, 127) for _ in range(1200 + 130 * number)]


async def streams(cluster: TestCluster) -> list[Answer]:
    return await asyncio.gather(
        *(cluster.complete(prompt(number), max_tokens=OUTPUT) for number in range(STREAMS))
    )


async def serving(cluster: TestCluster, role: str) -> str:
    """The first worker of the role that is seen with a request."""
    async with asyncio.timeout(20):
        while True:
            for member in cluster.local.of(role):
                if (await member.accounting(cluster.http))["requests"]:
                    return member.name


async def kill_prefill(cluster: TestCluster) -> None:
    await cluster.kill(await serving(cluster, "prefill"))


async def kill_decode(cluster: TestCluster) -> None:
    victim = await serving(cluster, "decode")
    await asyncio.sleep(1.5)
    await cluster.kill(victim)


async def kill_scheduler(cluster: TestCluster) -> None:
    await asyncio.sleep(1.0)
    await cluster.kill("scheduler-0")
    await cluster.restart("scheduler-0")


async def cut_nats(cluster: TestCluster) -> None:
    await asyncio.sleep(1.0)
    await cluster.stop_nats()
    await asyncio.sleep(5.0)
    await cluster.start_nats()


FAULTS: dict[str, Fault] = {
    "prefill-killed": kill_prefill,
    "decode-killed": kill_decode,
    "scheduler-killed": kill_scheduler,
    "nats-out-5s": cut_nats,
}


async def noticed(cluster: TestCluster) -> float:
    """How often a request was placed again, and the blocks that decode computed because prefill
    still owed them: proof that a killed worker was serving."""
    placed = entries(await cluster.metrics("gateway-0"), "baton_attempts_total")
    again = sum(value for labels, value in placed if 'cause="first"' not in labels)
    owed = 0.0
    for member in cluster.local.of("decode"):
        if member.child.running:
            metrics = await cluster.metrics(member.name)
            owed += sum(value for _, value in entries(metrics, "baton_recomputed_blocks_total"))
    return again + owed


def entries(metrics: str, name: str) -> list[tuple[str, float]]:
    """Labels and value of each series of a metric."""
    lines = [line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith(name)]
    return [(series.removeprefix(name), float(value)) for series, value in lines]


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_stream_ends_as_if_nothing_had_happened(fault: str, tmp_path: Path) -> None:
    settings = {"scheduler": ROUTE, "prefill": {"chunk_tokens": 32}}
    wish = Wish(prefill=2, decode=2, settings=settings)
    async with running_cluster(tmp_path, wish) as cluster:
        under_way = asyncio.create_task(streams(cluster), name="streams")
        await FAULTS[fault](cluster)
        disturbed = await under_way
        felt = await noticed(cluster)
        await cluster.until_ready()
        calm = await streams(cluster)
        assert all(answer.complete for answer in calm), calm
        for before, after in zip(calm, disturbed, strict=True):
            assert after.complete, (after.error, after.broken, len(after.text))
            assert after.text == before.text
            assert after.usage is not None and before.usage is not None
            assert after.usage["completion_tokens"] == before.usage["completion_tokens"] == OUTPUT
        assert felt > 0 or fault not in ("prefill-killed", "decode-killed")
        await cluster.until_nothing_is_held()
        asked = {answer.trace_id for answer in (*disturbed, *calm)}
        assert len(asked) == 2 * STREAMS
        await until_whole(cluster, asked, cluster.killed)
