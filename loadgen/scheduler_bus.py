"""Placements asked of a real scheduler process through a real NATS server.

For `bench_scheduler`: workers that only beat, a gateway that only asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from loadgen.scheduler_scene import place_request, report
from shared.bus.headers import Headers
from shared.bus.nats import NatsBus
from shared.bus.server import NatsServer
from shared.errors import BusError
from shared.ids import WorkerId
from shared.wire import subjects
from shared.wire.requests import Placement

_WORKERS: Final = 64
_ASKING: Final = 8
_BLOCKS: Final = 64
_START_S: Final = 60.0
_BEAT_S: Final = 1.0


async def through_nats(seconds: float) -> dict[str, float]:
    """One at a time for the round trip, then several at once for the rate."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        async with _cluster(Path(folder)) as gateway:
            alone = await _ask(gateway, seconds / 2)
            began = time.perf_counter()
            together = await asyncio.gather(*(_ask(gateway, seconds / 2) for _ in range(_ASKING)))
            took_s = time.perf_counter() - began
    ordered = sorted(alone)
    return {
        "workers": _WORKERS,
        "prompt_blocks": _BLOCKS,
        "p50_ms": round(1e3 * statistics.median(ordered), 3),
        "p99_ms": round(1e3 * ordered[int(0.99 * len(ordered))], 3),
        "per_s": round(sum(len(waits) for waits in together) / took_s),
        "asking_at_once": _ASKING,
    }


@contextlib.asynccontextmanager
async def _cluster(folder: Path) -> AsyncIterator[NatsBus]:
    """A server, a scheduler that leads and knows the workers, and a gateway's connection."""
    server = NatsServer(folder / "nats")
    await asyncio.to_thread(server.start)
    scheduler = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.scheduler", "--worker-id=scheduler-0"),
        f"--nats-url={server.url}",
        f"--nats-credentials-file={server.credentials('scheduler')}",
        *("--log-level=error", "--lost-after-s=30"),
        stdout=subprocess.DEVNULL,
    )
    buses: list[NatsBus] = []
    try:
        for role in ("prefill", "decode", "gateway"):
            credentials = str(server.credentials(role))
            buses.append(await NatsBus.connect(server.url, role, credentials, name=role))
        beating = asyncio.create_task(_beat(buses[0], buses[1]), name="beats")
        await _until_placed(buses[2])
        yield buses[2]
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating
    finally:
        for bus in buses:
            await bus.close()
        scheduler.terminate()
        await scheduler.wait()
        await asyncio.to_thread(server.stop)


async def _beat(prefill: NatsBus, decode: NatsBus) -> None:
    """Every worker once a second."""
    number = 0
    while True:
        number += 1
        for place in range(_WORKERS):
            role, bus = ("prefill", prefill) if place % 2 else ("decode", decode)
            worker = WorkerId(f"{role}-{place}")
            beat = report(worker, number, pages=1 << 20, placed=1 << 62)
            await bus.publish(subjects.heartbeat(role, worker), beat, Headers())
        await asyncio.sleep(_BEAT_S)


async def _until_placed(gateway: NatsBus) -> None:
    async with asyncio.timeout(_START_S):
        for pause_s in itertools.repeat(0.1):
            if await _ask(gateway, 0.0):
                return
            await asyncio.sleep(pause_s)


async def _ask(gateway: NatsBus, seconds: float) -> list[float]:
    """Round trips of placements, one after the other, at least one try."""
    chance, waits, end = random.Random(), list[float](), time.perf_counter() + seconds
    while True:
        request = place_request(chance, _BLOCKS)
        began = time.perf_counter()
        try:
            reply = await gateway.request(subjects.PLACE, request, Headers(), 5.0)
        except BusError:
            reply = None
        if isinstance(reply, Placement):
            waits.append(time.perf_counter() - began)
        if time.perf_counter() >= end:
            return waits
