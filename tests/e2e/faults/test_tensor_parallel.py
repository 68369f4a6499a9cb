"""Real workers of unlike numbers of ranks over UCX: the handoff keeps the tokens; a rank that dies
ends its worker, and the requests go on without it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from shared.checkpoint import open_checkpoint
from shared.engine.building import build_engine
from tests.e2e.cluster import TestCluster, Wish, running_cluster
from tests.shared.checkpoint.files import tiny_spec, write_folder
from tests.shared.engine.sequences import BLOCK, decode, pages_for, prefill, table

pytestmark = [pytest.mark.process, pytest.mark.faults]

PROMPT = [(31 * index + 7) % 256 for index in range(150)]
TOKENS = 24


def expected(model: Path) -> list[int]:
    engine = build_engine(open_checkpoint(str(model)), "cpu", "float32", 16, BLOCK, "torch")
    pages = table(*range(pages_for(len(PROMPT) + TOKENS)))
    return decode(engine, len(PROMPT), prefill(engine, PROMPT, pages), pages, TOKENS)


async def test_prefill_of_two_ranks_hands_over_to_decode_of_one(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "tiny", tiny_spec(heads=8, kv_heads=4, head_dim=8))
    wish = Wish(
        model=str(model),
        kvpool=0,
        shared={"dtype": "float32"},
        settings={
            "prefill": {"kv_pages": 64, "tensor_parallel": 2},
            "decode": {"kv_pages": 64, "step_tokens": 64},
        },
    )
    async with running_cluster(tmp_path, wish) as cluster:
        answer = await ask(cluster, "disaggregated")
        assert answer == ("disaggregated", expected(model))
        assert (await ask(cluster, "colocated")) == ("colocated", expected(model))
        await cluster.until_nothing_is_held()
        process = cluster.local.members["prefill-0"].child
        (rank,) = children(process.pid)
        os.kill(rank, signal.SIGKILL)
        async with asyncio.timeout(30):
            await process.wait()
        assert "tensor parallel rank 1 ended with code -9" in cluster.log("prefill-0")
        assert (await ask(cluster, "auto"))[1] == expected(model)


async def ask(cluster: TestCluster, route: str) -> tuple[str, list[int]]:
    """The route that was taken and the tokens."""
    answer = await cluster.complete(
        PROMPT,
        max_tokens=TOKENS,
        ignore_eos=True,
        return_token_ids=True,
        headers={"x-baton-route": route},
    )
    assert answer.complete, answer.error
    return answer.headers["x-baton-route"], list(answer.token_ids)


def children(pid: int) -> list[int]:
    """Started by any of its threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for thread in threads for word in (thread / "children").read_text().split()]
