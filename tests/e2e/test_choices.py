"""Several choices, penalties and log-probabilities on real processes: the same on both paths, after
the loss of a worker too, and from one prefill.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import TestCluster, Wish, running_cluster

pytestmark = pytest.mark.process

ROUTES = ("colocated", "disaggregated")
WISHES: dict[str, Any] = {
    "model": "hashchain",
    "max_tokens": 40,
    "temperature": 0.9,
    "seed": 11,
    "logprobs": 2,
    "return_token_ids": True,
    "presence_penalty": 0.4,
    "repetition_penalty": 1.2,
    "logit_bias": {"65": -100, "66": 3},
    "top_k": 50,
    "stop_token_ids": [70, 71, 72],
    "min_tokens": 12,
}


def prompt(length: int, seed: int) -> list[int]:
    chance = random.Random(f"{seed}:{length}")
    return [chance.randrange(32, 127) for _ in range(length)]


async def ask(cluster: TestCluster, route: str, **more: Any) -> dict[str, Any]:
    body, headers = WISHES | more, {"x-baton-route": route}
    url = f"{cluster.url}/v1/completions"
    async with cluster.http.post(url, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.read()
        assert answer.headers["x-baton-route"] == route
        found: dict[str, Any] = await answer.json()
        return found | {"trace": answer.headers["x-baton-trace-id"]}


async def computed(cluster: TestCluster, trace: str, jobs: int) -> int:
    """Prompt tokens that all engines computed for a request, once so many jobs are told."""
    async with asyncio.timeout(15):
        while True:
            spans = await cluster.trace(trace)
            if sum(span["name"] == "decode.generate" for span in spans) == jobs:
                chunks = [span for span in spans if span["name"] == "prefill.chunk"]
                return sum(span["attributes"]["baton.chunk.tokens"] for span in chunks)
            await asyncio.sleep(0.1)


async def test_both_paths_give_the_same_choices_from_one_prefill(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, Wish(decode=2)) as cluster:
        answers = {}
        for route in ROUTES:
            tokens = prompt(200, 5)
            found = await ask(cluster, route, prompt=tokens, n=4)
            answers[route] = found["choices"]
            assert found["usage"]["prompt_tokens"] == 200
            told = [len(choice["logprobs"]["tokens"]) for choice in found["choices"]]
            assert found["usage"]["completion_tokens"] == sum(told)
            # The prompt once, and for each further choice at most the block of its last token.
            first = 200 - found["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert await computed(cluster, found["trace"], 4) <= first + 3 * 16
        assert answers["colocated"] == answers["disaggregated"]
        choices = answers["colocated"]
        assert len({tuple(choice["token_ids"]) for choice in choices}) == 4
        assert all(65 not in choice["token_ids"] for choice in choices)
        for choice in choices:
            ends = [at for at, token in enumerate(choice["token_ids"]) if token in (70, 71, 72)]
            stopped = choice["finish_reason"] == "stop"
            assert ends == ([len(choice["token_ids"]) - 1] if stopped else [])
            assert len(choice["token_ids"]) >= 12
        alone = await ask(cluster, "disaggregated", prompt=tokens)
        assert alone["choices"] == choices[:1]
        await cluster.until_nothing_is_held()


async def test_choices_survive_their_decode_worker(tmp_path: Path) -> None:
    more = {"prompt": prompt(60, 7), "n": 3, "max_tokens": 1500, "stop_token_ids": None}
    async with running_cluster(tmp_path, Wish(decode=2)) as cluster:
        calm = await ask(cluster, "disaggregated", **more)
        task = asyncio.create_task(ask(cluster, "disaggregated", **more), name="killed")
        await cluster.kill(await _busy(cluster))
        assert (await task)["choices"] == calm["choices"]
        await cluster.until_nothing_is_held()


async def _busy(cluster: TestCluster) -> str:
    """The decode worker that holds all three choices, once there is one."""
    async with asyncio.timeout(15):
        while True:
            for name, entries in (await cluster.accounting()).items():
                if name.startswith("decode") and entries.get("requests") == 3:
                    return name
            await asyncio.sleep(0.01)
