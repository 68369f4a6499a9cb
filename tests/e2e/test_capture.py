"""Live traffic captured, sent again to the same cluster, and captured again: the same requests."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.workloads import file
from loadgen.workloads.request import Request, Workload
from tests.architecture.sources import ROOT
from tests.contracts.wires import until
from tests.e2e.cluster import TestCluster, running_cluster

pytestmark = pytest.mark.process

SHARED = list(range(32, 32 + 64))
ASKED: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
    ({"prompt": [*SHARED, 100, 101], "max_tokens": 5}, {"x-baton-affinity": "a"}),
    ({"prompt": [*SHARED, 102], "max_tokens": 9, "priority": -40}, {}),
    ({"prompt": [*SHARED, 100, 101, 102], "max_tokens": 3}, {"x-baton-affinity": "a"}),
    (
        {"prompt": [100] * 40, "max_tokens": 6, "nvext": {"agent_hints": {"osl": 6}}},
        {"x-baton-ttft-slo-ms": "2500", "x-baton-tpot-slo-ms": "40"},
    ),
)


@contextlib.asynccontextmanager
async def capturing(cluster: TestCluster, out: Path) -> AsyncIterator[None]:
    """The command, from its "watching" to the end of as many requests as there are."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen", "capture",
        "--admin-url", cluster.admin_url, "--out", str(out), "--count", str(len(ASKED)),
        cwd=ROOT, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        await until(out.with_name(out.name + ".part").exists, 30.0)
        yield
        async with asyncio.timeout(60):
            said = await process.stderr.read()
            assert await process.wait() == 0, said.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_captured_traffic_is_sent_again_with_all_that_it_wished(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    async with running_cluster(tmp_path) as cluster:
        async with capturing(cluster, first):
            for body, headers in ASKED:
                url = f"{cluster.url}/v1/completions"
                asked = {"model": "hashchain", "ignore_eos": True, **body}
                async with cluster.http.post(url, json=asked, headers=headers) as answer:
                    assert answer.status == 200, await answer.read()
        async with capturing(cluster, second):
            run = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "loadgen", "run", "--base-url", cluster.url,
                "--admin-url", cluster.admin_url, "--dataset-path", str(first), "--ignore-eos",
                "--result-dir", str(tmp_path), "--result-filename", "again",
                cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            _, said = await run.communicate()
            assert run.returncode in (0, 3), said.decode()
    before, after = file.read(first), file.read(second)
    assert [wished(request) for request in after] == [wished(request) for request in before]
    assert [request.priority for request in before] == [0, 40, 0, 0]
    assert shared_blocks(after) == shared_blocks(before) == [0, 4, 4, 0]


def wished(request: Request) -> tuple[object, ...]:
    return (
        request.prompt_tokens,
        request.output_tokens,
        request.session,
        request.priority,
        request.expected_tokens,
        request.ttft_slo_s,
        request.tpot_slo_s,
    )


def shared_blocks(workload: Workload) -> list[int]:
    """Of each request, blocks that an earlier one had."""
    seen: set[int] = set()
    found = []
    for request in workload:
        found.append(sum(block in seen for block in request.blocks))
        seen.update(request.blocks)
    return found
