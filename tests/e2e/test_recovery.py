"""Who takes over, who is let go and who is kept out, on real processes: two schedulers, a gateway
that dies, a poisonous request, workers restarted one after the other under load.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.builders import until
from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.streams import Answer

pytestmark = pytest.mark.process

STREAMS = 8
TAKEOVER_S = 10.0
"""Three on an idle machine; the figure is printed."""
POISON = 300
"""A token that only prompts can hold: the weightless engine draws printable ones."""


def prompt(number: int, length: int = 600) -> list[int]:
    chance = random.Random(f"{number}:{length}")
    return [chance.randrange(32, 127) for _ in range(length)]


async def streams(cluster: TestCluster, tokens: int) -> list[Answer]:
    return await asyncio.gather(
        *(cluster.complete(prompt(number), max_tokens=tokens) for number in range(STREAMS))
    )


async def leader(cluster: TestCluster, *names: str) -> str:
    """The one scheduler of these that leads, once there is one."""
    async with asyncio.timeout(10):
        while True:
            for name in names:
                member = cluster.local.members[name]
                with suppress(aiohttp.ClientError, TimeoutError):
                    if (await member.accounting(cluster.http))["leading"]:
                        return name
            await asyncio.sleep(0.02)


async def accounted(cluster: TestCluster, name: str, entry: str) -> Any:
    return (await cluster.local.members[name].accounting(cluster.http))[entry]


async def all_run(cluster: TestCluster) -> None:
    """Until decode holds every stream."""
    async with asyncio.timeout(20):
        while await accounted(cluster, "decode-0", "requests") < STREAMS:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


class Probes:
    """A new small request every tenth of a second: when it began, when it had its answer."""

    def __init__(self, cluster: TestCluster) -> None:
        self._cluster = cluster
        self._tasks: list[asyncio.Task[tuple[float, float, Answer]]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Probes]:
        sender = asyncio.create_task(self._send(), name="probes")
        try:
            yield self
        finally:
            sender.cancel()
            await asyncio.gather(*self._tasks)

    async def _send(self) -> None:
        for number in range(10_000):
            self._tasks.append(asyncio.create_task(self._one(number), name=f"probe-{number}"))
            await asyncio.sleep(0.1)

    async def _one(self, number: int) -> tuple[float, float, Answer]:
        began = time.monotonic()
        answer = await self._cluster.complete(prompt(number, 40), max_tokens=2)
        return began, time.monotonic(), answer

    async def first_success_after(self, instant: float) -> float:
        """Seconds from `instant` to the first answer to a request that began after it."""
        async with asyncio.timeout(15):
            while True:
                done = [task.result() for task in self._tasks if task.done()]
                ended = [end for began, end, _ in done if began > instant]
                if ended:
                    return min(ended) - instant
                await asyncio.sleep(0.02)

    def all_answered(self) -> bool:
        return all(task.result()[2].complete for task in self._tasks)


SCHEDULERS = ("scheduler-0", "scheduler-1")


@pytest.mark.parametrize("fault", ["killed", "stopped"])
async def test_the_standby_takes_over_under_load(fault: str, tmp_path: Path) -> None:
    """F10, F12, F13: eight streams run on, new requests are placed again soon,
    and a leader that was only asleep steps back."""
    async with running_cluster(tmp_path, Wish(scheduler=2)) as cluster:
        calm = await streams(cluster, 800)
        old = await leader(cluster, *SCHEDULERS)
        (new,) = set(SCHEDULERS) - {old}
        epoch = await accounted(cluster, old, "leader_epoch")
        under_way = asyncio.create_task(streams(cluster, 800), name="streams")
        async with Probes(cluster).running() as probes:
            await asyncio.sleep(0.5)
            instant = time.monotonic()
            await cluster.kill(old) if fault == "killed" else cluster.pause(old)
            gap_s = await probes.first_success_after(instant)
            print(f"leader {fault}: next request answered after {gap_s:.2f} s")
            assert gap_s < TAKEOVER_S
            assert await leader(cluster, new) == new
            if fault == "stopped":
                await asyncio.sleep(2.0)
                cluster.resume(old)
                await asyncio.sleep(1.0)
        assert probes.all_answered()
        disturbed = await under_way
        assert all(answer.complete for answer in disturbed)
        assert [answer.text for answer in disturbed] == [answer.text for answer in calm]
        assert await accounted(cluster, new, "leader_epoch") == epoch + 1
        lost = await cluster.metrics(new)
        assert 'baton_workers_lost_total{cause="silent"' not in lost
        if fault == "stopped":
            assert not await accounted(cluster, old, "leading")
            assert cluster.local.members[old].child.running
            await cluster.kill(new)
            assert await leader(cluster, old) == old
            assert (await cluster.complete(prompt(1), max_tokens=2)).complete
        await cluster.until_nothing_is_held(5.0)
        survivor = old if fault == "stopped" else new
        await until_nothing_is_assumed(cluster, survivor)


async def until_nothing_is_assumed(cluster: TestCluster, scheduler: str) -> None:
    """No load is charged that nobody reports, five seconds after the fault at the latest."""
    async with asyncio.timeout(5):
        while True:
            lines = (await cluster.metrics(scheduler)).splitlines()
            assumed = [line for line in lines if line.startswith("baton_assumed_")]
            assert assumed
            if all(line.endswith(" 0.0") for line in assumed):
                return
            await asyncio.sleep(0.1)


async def test_a_dead_gateway_leaves_nothing_behind(tmp_path: Path) -> None:
    """F07: workers hear that the owner of their sequences is gone."""
    async with running_cluster(tmp_path) as cluster:

        async def read(number: int) -> None:
            with suppress(aiohttp.ClientError):
                await cluster.complete(prompt(number), max_tokens=7000)

        async with asyncio.TaskGroup() as tasks:
            for number in range(STREAMS):
                tasks.create_task(read(number), name=f"read-{number}")
            await all_run(cluster)
            await cluster.kill("gateway-0")
        instant = time.monotonic()
        await cluster.until_nothing_is_held(5.0)
        print(f"nothing held {time.monotonic() - instant:.2f} s after the gateway's death")
        await cluster.restart("gateway-0")
        assert (await cluster.complete(prompt(1), max_tokens=2)).complete


async def test_a_gateway_that_is_told_to_end_finishes_its_streams(tmp_path: Path) -> None:
    """F08."""
    async with running_cluster(tmp_path) as cluster:
        under_way = asyncio.create_task(streams(cluster, 600), name="streams")
        await all_run(cluster)
        gateway = cluster.local.members["gateway-0"].child
        assert await gateway.stop(30.0)
        assert gateway.exit_code == 0
        assert all(answer.complete for answer in await under_way)
        await cluster.until_nothing_is_held(5.0)


async def test_a_poisonous_request_meets_two_workers_and_harms_nobody_else(
    tmp_path: Path,
) -> None:
    """F56: it kills whoever computes it. Others that were there are served elsewhere."""
    poison = {"poison_token": POISON}
    settings = {"prefill": {"chunk_tokens": 64, **poison}, "decode": poison}
    wish = Wish(prefill=3, decode=2, settings=settings)
    async with running_cluster(tmp_path, wish) as cluster:
        calm = await streams(cluster, 400)
        under_way = asyncio.create_task(streams(cluster, 400), name="streams")
        deadly = [*prompt(99, 40), POISON]
        answer = await cluster.complete(deadly, max_tokens=4)
        assert (answer.status, answer.error and answer.error["code"]) == (500, "poison_request")
        assert answer.headers["x-should-retry"] == "false"
        members = cluster.local.members.values()
        await until(lambda: sum(not member.child.running for member in members) >= 2)
        dead = [member.name for member in members if not member.child.running]
        assert len(dead) == 2, dead
        assert {cluster.local.members[name].child.exit_code for name in dead} == {70}
        disturbed = await under_way
        assert all(each.complete for each in disturbed), disturbed
        assert [each.text for each in disturbed] == [each.text for each in calm]
        began = time.monotonic()
        again = await cluster.complete(deadly, max_tokens=4)
        assert again.error is not None and again.error["code"] == "poison_request"
        assert time.monotonic() - began < 1.0
        assert (await cluster.complete(prompt(99, 40), max_tokens=4)).complete
        await cluster.until_nothing_is_held(5.0)


@pytest.mark.faults
async def test_all_workers_are_restarted_one_by_one_under_load(tmp_path: Path) -> None:
    """F25, F59: two of each role; no request fails and no token changes."""
    wish = Wish(prefill=2, decode=2, shared={"drain_s": 5.0})
    async with running_cluster(tmp_path, wish) as cluster:
        calm = [await cluster.complete(prompt(n), max_tokens=300) for n in range(4)]
        going, rounds = True, 0

        async def load(number: int) -> None:
            nonlocal rounds
            while going:
                answer = await cluster.complete(prompt(number), max_tokens=300)
                assert answer.complete, (answer.status, answer.error)
                assert answer.text == calm[number].text
                rounds += 1

        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(load(number), name=f"load-{number}")
            for name in ("prefill-0", "decode-0", "prefill-1", "decode-1"):
                child = cluster.local.members[name].child
                assert await child.stop(20.0), f"{name} did not drain"
                assert child.exit_code == 0
                await cluster.restart(name)
            going = False
        print(f"{rounds} requests during the rolling restart")
        assert rounds > 4
        await cluster.until_nothing_is_held(5.0)
        await until_nothing_is_assumed(cluster, "scheduler-0")
