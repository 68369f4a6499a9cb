"""What the cluster does before anybody looks: requests of every kind, and two load runs' files."""

from __future__ import annotations

import asyncio
import csv
import json
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster import TestCluster

SHARED = "The same long beginning of many prompts, told word for word, again and again. " * 8


@dataclass(frozen=True)
class Served:
    """Trace ids."""

    handed_over: str
    colocated: str
    cancelled: str
    failed: str


async def serve(cluster: TestCluster, runs: Path) -> Served:
    """Returns once the whole trace of each request can be read."""
    for number in range(6):
        await cluster.chat(f"{SHARED} Question {number}.", max_tokens=8)
    handed = await cluster.chat(
        "A prompt that nobody has asked before. " * 12,
        headers={"x-baton-route": "disaggregated"},
        max_tokens=24,
    )
    together = await cluster.chat(
        "Another one, to stay where it is. " * 8, headers={"x-baton-route": "colocated"}
    )
    served = Served(
        handed_over=handed.headers["x-baton-trace-id"],
        colocated=together.headers["x-baton-trace-id"],
        cancelled=await _cut(cluster),
        failed=await _refused(cluster),
    )
    await cluster.trace(served.handed_over, services=5)
    await cluster.trace(served.colocated, services=2)
    for trace_id in (served.cancelled, served.failed, served.handed_over, served.colocated):
        await _whole(cluster, trace_id)
    for name, scale in (("run-a", 2.0), ("run-b", 1.0)):
        write_run(runs / name, scale, served.handed_over)
    (runs / "run-broken").mkdir()
    (runs / "run-broken" / "run.json").write_text("{")
    return served


async def _cut(cluster: TestCluster) -> str:
    """A client that goes away after the first piece."""
    body = {
        "model": await cluster.model(),
        "stream": True,
        "max_tokens": 4_000,
        "messages": [{"role": "user", "content": SHARED}],
    }
    async with cluster.http.post(f"{cluster.url}/v1/chat/completions", json=body) as answer:
        await answer.content.readline()
        trace_id = answer.headers["x-baton-trace-id"]
        answer.close()
    return trace_id


async def _refused(cluster: TestCluster) -> str:
    body = {"model": "nobody", "messages": [{"role": "user", "content": "?"}]}
    async with cluster.http.post(f"{cluster.url}/v1/chat/completions", json=body) as answer:
        assert answer.status == 404
        return answer.headers["x-baton-trace-id"]


async def _whole(cluster: TestCluster, trace_id: str) -> None:
    """Wait for the root span."""
    async with asyncio.timeout(20.0):
        while True:
            url = f"{cluster.admin_url}/admin/traces/{trace_id}"
            async with cluster.http.get(url) as answer:
                found = json.loads(await answer.read())
            if answer.status == 200 and found["summary"]["status"] != "open":
                return
            await asyncio.sleep(0.1)


def write_run(folder: Path, scale: float, trace_id: str) -> None:
    """Files as the load generator writes them."""
    folder.mkdir(parents=True)
    spread = {"mean": 10.0, "p50": 9.5, "p90": 12.0, "p95": None, "p99": None}
    metrics = {"requests": 60, "ttft_ms": spread, "tpot_ms": spread, "e2e_ms": spread}
    document = {"schema": "baton.run/1", "source": "live", "options": {}, "metrics": metrics}
    (folder / "run.json").write_text(json.dumps(document))
    with (folder / "requests.csv").open("w", newline="") as file:
        names = ["number", "trace_id", "request_id", "outcome", "ttft_s", "tpot_s", "e2e_s"]
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for number in range(60):
            ttft_s = scale * (0.05 + number / 1_000)
            fields = {"number": number, "trace_id": trace_id, "outcome": "ok"}
            writer.writerow({**fields, "ttft_s": ttft_s, "tpot_s": 0.01, "e2e_s": ttft_s + 0.3})
