"""`make soak`: random requests cut at random moments for minutes; then 300 at once, five times.

Afterwards every page must be free or cached, nothing held, and the memory of each process flat.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadgen.chaos_cluster import Cluster
from loadgen.soak_report import Findings, Memory, resident_bytes
from services.local import LocalCluster, LocalSettings
from services.topology import DEFAULT, Topology
from shared.errors import StartupError

ROUNDS: Final = 5
CUTS: Final = 300
SETTLE_S: Final = 30.0
_AT_ONCE: Final = 12
_SAMPLE_S: Final = 1.0
_STATES: Final = ("placing", "first token", "streaming", "finished")
_POOL_BYTES: Final = 8 * 1024 * 1024


def main() -> int:
    """0 only if nothing leaked and memory is flat; 2 when the cluster could not start."""
    parser = argparse.ArgumentParser(prog="python -m loadgen.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of random cuts")
    parser.add_argument("--run-dir", type=Path, default=Path(".baton/soak"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        findings = asyncio.run(soak(options.seconds, options.run_dir, options.seed))
    except StartupError as error:
        print(f"baton: {error.message}", file=sys.stderr)
        return 2
    print(findings.table())
    print(findings.line(), flush=True)
    return 0 if findings.good else 1


async def soak(seconds: float, run_dir: Path, seed: int) -> Findings:
    """Start a cluster, treat it badly, look at it. Raises StartupError."""
    settings = LocalSettings(
        topology=_topology(), model_path="hashchain", run_dir=run_dir, restart=False, drain_s=15.0
    )
    local = LocalCluster(settings, lambda text: print(text, file=sys.stderr))
    await local.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            return await Soak(local, http, seed).run(seconds)
    finally:
        await local.drain()


def _topology() -> Topology:
    """Two of each worker; a pool that is soon full, so that it evicts too."""
    wanted = DEFAULT.with_engine("hashchain")
    wanted = wanted.with_count("prefill", 2).with_count("decode", 2)
    gateway = wanted.group("gateway").changed(port=0, admin_port=0, traces_port=0)
    pool = wanted.group("kvpool").changed(host_bytes=_POOL_BYTES)
    short = wanted.group("prefill").changed(chunk_tokens=256)
    return wanted.changed(gateway).changed(pool).changed(short)


class Soak:
    """The clients of one soak."""

    def __init__(self, local: LocalCluster, http: aiohttp.ClientSession, seed: int) -> None:
        self._local = local
        self._http = http
        self._chance = random.Random(seed)
        self._cluster = Cluster(local.settings.run_dir, http)
        self._ends: Counter[str] = Counter()
        self._broken: Counter[str] = Counter()
        self._memory: dict[str, Memory] = {name: Memory() for name in local.members}

    async def run(self, seconds: float) -> Findings:
        began_s = time.monotonic()
        sampler = asyncio.create_task(self._sample(), name="memory")
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(_AT_ONCE):
                    work = self._client(began_s + seconds, self._chance.random())
                    tasks.create_task(work, name=f"client-{number}")
        finally:
            sampler.cancel()
        for _ in range(ROUNDS):
            await self._cut_many()
        settled_s = await self._settled()
        return Findings(
            seconds=time.monotonic() - began_s,
            ends=dict(self._ends),
            broken=dict(self._broken),
            cuts=ROUNDS * CUTS,
            settled_s=settled_s,
            held=await self._cluster.leaks(),
            lost_pages=await self._lost_pages(),
            memory=self._memory,
            probe_ok=await self._probe(),
        )

    # -- clients -----------------------------------------------------------------------------

    async def _client(self, until_s: float, seed: float) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until_s:
            state = chance.choice(_STATES)
            try:
                await self._one(chance, state)
                self._ends[state] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                self._broken[type(error).__name__] += 1

    async def _one(self, chance: random.Random, state: str) -> None:
        """One request, left when it is in that state."""
        body = _body(chance, stream=state != "placing" or chance.random() < 0.5)
        if state == "placing":
            await self._left_after(body, chance.uniform(0.0, 0.1))
            return
        async with self._post(body) as response:
            if response.status != 200:
                self._broken[f"status {response.status}"] += 1
                return
            leave_at = {"first token": 1, "streaming": chance.randrange(2, 60)}.get(state, 0)
            seen = 0
            async for line in response.content:
                seen += line.startswith(b"data: ")
                if leave_at and seen >= leave_at:
                    return

    async def _left_after(self, body: dict[str, Any], pause_s: float) -> None:
        async def ask() -> None:
            async with self._post(body) as response:
                await response.read()

        task = asyncio.create_task(ask(), name="soon-left")
        await asyncio.wait([task], timeout=pause_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _cut_many(self) -> None:
        """Many at once, all cut in the same moment, whatever their state."""

        async def one() -> None:
            await self._one(random.Random(self._chance.random()), "finished")

        tasks = [asyncio.create_task(one(), name="cut") for _ in range(CUTS)]
        await asyncio.wait(tasks, timeout=self._chance.uniform(0.3, 1.5))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self) -> bool:
        """The same answer twice."""
        texts: list[str] = []
        for _ in range(2):
            body = {"model": "hashchain", "prompt": "still there?", "max_tokens": 32}
            async with self._post(body | {"temperature": 0}) as response:
                if response.status != 200:
                    return False
                texts.append((await response.json())["choices"][0]["text"])
        return bool(texts[0]) and texts[0] == texts[1]

    def _post(self, body: dict[str, Any]) -> Any:
        return self._http.post(f"{self._local.url}/v1/completions", json=body)

    # -- looking -----------------------------------------------------------------------------

    async def _sample(self) -> None:
        while True:
            for name, member in self._local.members.items():
                self._memory[name].add(time.monotonic(), resident_bytes(member.child.pid))
            await asyncio.sleep(_SAMPLE_S)

    async def _settled(self) -> float:
        began_s = time.monotonic()
        while await self._cluster.leaks() and time.monotonic() - began_s < SETTLE_S:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return time.monotonic() - began_s

    async def _lost_pages(self) -> int:
        """Pages that a worker neither has free nor keeps as cache."""
        lost = 0
        for entries in (await self._cluster.accounting()).values():
            pages = entries.get("pages", {})
            lost += sum(count for state, count in pages.items() if state not in ("free", "cached"))
        return lost


def _body(chance: random.Random, *, stream: bool) -> dict[str, Any]:
    return {
        "model": "hashchain",
        "prompt": list(_prompt(chance)),
        "max_tokens": chance.randrange(1, 300),
        "stream": stream,
    }


def _prompt(chance: random.Random) -> Iterator[int]:
    """Sometimes with a beginning that others have too."""
    shared = random.Random(chance.randrange(4))
    for _ in range(chance.choice((0, 0, 160, 640))):
        yield shared.randrange(32, 127)
    for _ in range(chance.randrange(1, 900)):
        yield chance.randrange(32, 127)


if __name__ == "__main__":
    sys.exit(main())
