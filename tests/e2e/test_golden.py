"""The real model, float32, over HTTP: golden tokens on all four paths, and honest cache counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.kv.hashing import CacheIdentity, block_hashes, reusable_blocks
from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.e2e.streams import Answer
from tests.golden.cases import SUBSET, GoldenCase, full_set, load

pytestmark = [pytest.mark.process, pytest.mark.model]

BLOCK = 16
IDENTITY = CacheIdentity("test", "model", "tokenizer", "float32", BLOCK)
ALL = load(full_set())


class InfiniteCache:
    """How many prompt tokens a cache that forgets nothing saves."""

    def __init__(self) -> None:
        self._blocks: set[str] = set()

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        """Of this prompt, given all earlier ones; then it is an earlier one."""
        names = block_hashes(IDENTITY, tuple(prompt))
        most = reusable_blocks(len(prompt), BLOCK)
        known = 0
        while known < most and names[known] in self._blocks:
            known += 1
        self._blocks.update(names)
        return known * BLOCK


async def ask(cluster: TestCluster, case: GoldenCase, route: str) -> Answer:
    """The chat, or (for an empty message, which chat refuses) its prompt ids."""
    wanted = {"max_tokens": 48, "return_token_ids": True, "headers": {"x-baton-route": route}}
    if case.messages and all(message["content"] for message in case.messages):
        return await cluster.stream("/v1/chat/completions", messages=case.messages, **wanted)
    return await cluster.complete(case.prompt, **wanted)


async def check(
    cluster: TestCluster, cases: Sequence[GoldenCase], route: str, cache: InfiniteCache
) -> None:
    """Every case, one after the other: right tokens, the wanted route, exact cache counts."""
    for case in cases:
        answer = await ask(cluster, case, route)
        assert answer.complete, (case.name, answer.error)
        assert case.agrees(answer.token_ids), (case.name, route, answer.token_ids, case.greedy)
        assert answer.headers["x-baton-route"] == route
        assert answer.usage is not None
        assert answer.usage["prompt_tokens"] == len(case.prompt)
        assert answer.usage["completion_tokens"] == len(answer.token_ids)
        assert answer.cached_tokens == cache.cached_tokens(case.prompt), case.name
    await cluster.until_nothing_is_held()


async def start_empty(cluster: TestCluster, *names: str) -> None:
    """Kill workers and start them again: their caches are gone."""
    await asyncio.gather(*(cluster.kill(name) for name in names))
    await asyncio.gather(*(cluster.restart(name) for name in names))


async def four_paths(folder: Path, model: str, cases: Sequence[GoldenCase]) -> None:
    async with running_cluster(folder, Wish(model=model)) as cluster:
        seen = InfiniteCache()
        await check(cluster, cases, "disaggregated", seen)
        await start_empty(cluster, "prefill-0", "decode-0")
        await check(cluster, cases, "disaggregated", seen)
        fetched = await cluster.metrics("prefill-0")
        assert "baton_transfer_bytes_total" in fetched
        await start_empty(cluster, "decode-0")
        cold = InfiniteCache()
        await check(cluster, cases, "colocated", cold)
        await check(cluster, cases, "colocated", cold)


async def test_golden_tokens_on_four_paths(tmp_path: Path, model_path: str) -> None:
    await four_paths(tmp_path, model_path, load(SUBSET))


@pytest.mark.golden
@pytest.mark.skipif(not ALL, reason="the full golden file is not here (set BATON_GOLDEN)")
async def test_all_golden_tokens_on_four_paths(tmp_path: Path, model_path: str) -> None:
    await four_paths(tmp_path, model_path, ALL)
