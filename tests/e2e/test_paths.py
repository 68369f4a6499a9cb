"""The same tokens on every path, on real processes: colocated cold and warm, handed over cold,
handed over with blocks coming back from the pool; and under pressure. The weightless engine
turns any wrong page into a wrong token.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.streams import Answer

pytestmark = pytest.mark.process

BLOCK = 16
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 200, 701)
DISAGGREGATED = {"scheduler": {"route": "disaggregated"}}
COLOCATED = {"scheduler": {"route": "colocated"}}


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random printable byte tokens."""
    chance = random.Random(f"{seed}:{length}")
    return [chance.randrange(32, 127) for _ in range(length)]


async def ask(cluster: TestCluster, tokens: list[int], **parameters: object) -> Answer:
    answer = await cluster.complete(tokens, **parameters)
    assert answer.complete, answer
    assert answer.usage is not None
    assert answer.usage["prompt_tokens"] == len(tokens)
    return answer


def reusable(length: int) -> int:
    """Prompt tokens that a full cache saves: whole blocks, never the last token."""
    return (length - 1) // BLOCK * BLOCK


async def test_four_paths_give_the_same_tokens(tmp_path: Path) -> None:
    prompts = [prompt(length) for length in LENGTHS]
    async with running_cluster(tmp_path / "a", Wish(prefill=0, settings=COLOCATED)) as cluster:
        cold = [await ask(cluster, tokens) for tokens in prompts]
        warm = [await ask(cluster, tokens) for tokens in prompts]
        await cluster.until_nothing_is_held()
    assert [a.cached_tokens for a in cold] == [0] * len(LENGTHS)
    assert [a.cached_tokens for a in warm] == [reusable(length) for length in LENGTHS]
    assert all(a.headers["x-baton-route"] == "colocated" for a in (*cold, *warm))
    async with running_cluster(tmp_path / "b", Wish(settings=DISAGGREGATED)) as cluster:
        handed = [await ask(cluster, tokens) for tokens in prompts]
        await cluster.until_nothing_is_held()
        for name in ("prefill-0", "decode-0"):
            await cluster.kill(name)
            await cluster.restart(name)
        pooled = [await ask(cluster, tokens) for tokens in prompts]
        await cluster.until_nothing_is_held()
    assert [a.cached_tokens for a in handed] == [0] * len(LENGTHS)
    assert [a.cached_tokens for a in pooled] == [reusable(length) for length in LENGTHS]
    assert all(a.headers["x-baton-route"] == "disaggregated" for a in (*handed, *pooled))
    for path in (warm, handed, pooled):
        assert [a.text for a in path] == [a.text for a in cold]
        assert [a.usage and a.usage["completion_tokens"] for a in path] == [32] * len(LENGTHS)


async def test_small_caches_and_chunks_change_nothing(tmp_path: Path) -> None:
    """Eviction on both workers, preemption on decode, odd chunk sizes, twelve streams at once."""
    heads = [prompt(90, seed) for seed in range(3)]
    prompts = [heads[n % 3] + prompt(40 + 7 * n, 100 + n) for n in range(12)]
    async with running_cluster(tmp_path / "a", Wish(prefill=0, settings=COLOCATED)) as cluster:
        calm = [(await ask(cluster, tokens, max_tokens=80)).text for tokens in prompts]
    tight = {
        **DISAGGREGATED,
        "prefill": {"kv_pages": 40, "chunk_tokens": 48},
        "decode": {"kv_pages": 64, "step_tokens": 48},
    }
    async with running_cluster(tmp_path / "b", Wish(settings=tight)) as cluster:
        for _ in range(2):
            answers = await asyncio.gather(
                *(ask(cluster, tokens, max_tokens=80) for tokens in prompts)
            )
            assert [answer.text for answer in answers] == calm
        await cluster.until_nothing_is_held()
        preempted = await cluster.metrics("decode-0")
        assert "baton_preemptions_total" in preempted


NAMES = {
    "gateway.parse",
    "gateway.render",
    "scheduler.place",
    "prefill.queue",
    "prefill.chunk",
    "prefill.seal",
    "transfer.pull",
    "decode.verify",
    "decode.generate",
    "kvpool.store",
    "kv.settle",
    "gateway.stream",
}


async def test_one_trace_names_all_five_services(cluster: TestCluster) -> None:
    answer = await ask(cluster, prompt(100))
    spans = await cluster.trace(answer.trace_id, services=5)
    async with asyncio.timeout(15):
        while not {span["name"] for span in spans} >= NAMES:
            spans = await cluster.trace(answer.trace_id, services=5)
    assert len({span["trace_id"] for span in spans}) == 1
    pull = next(s for s in spans if s["name"] == "transfer.pull" and s["service"] == "decode")
    assert pull["attributes"]["baton.transfer.bytes_raw"] > 0
    assert pull["attributes"]["baton.transfer.transport"].startswith("ucx:")


async def test_clients_that_hang_up_leave_nothing_behind(cluster: TestCluster) -> None:
    async def cut(number: int) -> None:
        body = {
            "model": "hashchain",
            "prompt": prompt(300, number),
            "max_tokens": 4000,
            "stream": number % 2 == 0,
        }
        async with cluster.http.post(f"{cluster.url}/v1/completions", json=body) as response:
            await response.content.readany()

    async def hang_up(number: int) -> None:
        task = asyncio.create_task(cut(number), name=f"cut-{number}")
        await asyncio.sleep(0.02 * number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(hang_up(number) for number in range(20)))
    await cluster.until_nothing_is_held()
    assert (await ask(cluster, prompt(50))).complete
