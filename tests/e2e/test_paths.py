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
from tests.e2e.span_table import lacking
from tests.e2e.streams import Answer
from tests.e2e.traces import until_whole

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
        "decode": {"kv_pages": 64, "step_tokens": 48, "forecast": False},
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


async def test_one_trace_of_all_five_services_tells_all_that_the_table_lists(
    cluster: TestCluster,
) -> None:
    hints = {"x-baton-affinity": "a-session", "x-baton-run": "a-run", "X-Request-Id": "mine"}
    answer = await cluster.chat("Tell me about batons. " * 8, headers=hints)
    assert answer.complete
    name = answer.trace_id
    spans = (await until_whole(cluster, {name}))[name]
    async with asyncio.timeout(15):
        while wrong := lacking(spans):  # copies into the pool end after the answer
            await asyncio.sleep(0.2)
            print(wrong)
            spans = (await until_whole(cluster, {name}))[name]
    assert {span["service"] for span in spans} == {
        "gateway", "scheduler", "prefill", "decode", "kvpool",
    }  # fmt: skip
    pull = next(s for s in spans if s["name"] == "transfer.pull" and s["service"] == "decode")
    assert pull["attributes"]["baton.transfer.bytes_raw"] > 0
    assert pull["attributes"]["baton.transfer.transport"].startswith("ucx:")
    assert {link["span_id"] for link in pull["links"]} <= {span["span_id"] for span in spans}
    generate = next(span for span in spans if span["name"] == "decode.generate")
    assert generate["events"][0]["name"] == "joined"
    said = str([span["attributes"] for span in spans])
    assert "a-session" not in said and "batons" not in said


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
