"""Raw transfers between two processes: the three contenders in turn, in one run, every byte
checked. A round is comparable within itself: ratios are taken round by round.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from loadgen.handoff.clusters import note
from loadgen.handoff.contenders import Contender, PlaneContender, RawContender, TcpContender
from loadgen.handoff.figures import median
from loadgen.handoff.pages import REGION_BYTES, Bytes, pattern
from loadgen.handoff.raw import RawReader
from shared.dataplane.link_wire import Lane
from shared.errors import StartupError

SIZES: Final = tuple(64 << shift for shift in (10, 12, 14, 16, 18, 20))
AT_ONCE: Final = 4
"""Transfers on their way at one time, as of several requests; fewer where they are large."""
_AT_ONCE_BYTES: Final = 16 << 20
_START_S: Final = 60.0


@dataclass(slots=True)
class Rates:
    """GB/s of each contender by round, for one size."""

    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, gigabytes_per_s: float) -> None:
        self.found.setdefault(name, []).append(gigabytes_per_s)

    def ratio(self, other: str) -> float:
        """Ours to the other's, the median over rounds."""
        pairs = zip(self.found["plane"], self.found[other], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def figures(self) -> dict[str, object]:
        found: dict[str, object] = {
            f"{name}_gb_per_s": [median(rates), round(min(rates), 3), round(max(rates), 3)]
            for name, rates in self.found.items()
        }
        for name in ("raw", "tcp"):
            found[f"ratio_to_{name}"] = round(self.ratio(name), 3)
        return found


@dataclass(frozen=True, slots=True)
class Transfers:
    """All sizes."""

    transport: str
    sizes: dict[int, Rates]
    at_once: int = AT_ONCE

    def worst(self, other: str) -> float:
        return round(min(rates.ratio(other) for rates in self.sizes.values()), 3)


async def measure(
    sizes: Sequence[int], rounds: int, transport: str, round_bytes: int, at_once: int = AT_ONCE
) -> Transfers:
    """Each contender moves about `round_bytes` (but at least four transfers) per round and size."""
    target, wanted = np.zeros(REGION_BYTES, np.uint8), pattern()
    found = {size: Rates() for size in sizes}
    async with contextlib.AsyncExitStack() as stack:
        contenders = [
            await _open(stack, name, target, transport) for name in ("plane", "raw", "tcp")
        ]
        for number in range(rounds + 1):
            for size in sizes:
                for contender in _turned(contenders, number):
                    rate = await _one(contender, size, round_bytes, at_once, target, wanted)
                    if number > 0:
                        found[size].add(contender.name, rate)
            note(f"transfers {number}/{rounds}")
        (plane,) = (c for c in contenders if isinstance(c, PlaneContender))
        return Transfers(plane.transport, found, at_once)


async def _one(
    contender: Contender,
    size: int,
    round_bytes: int,
    most: int,
    target: Bytes,
    wanted: Bytes,
) -> float:
    """GB/s of one turn. Raises StartupError where a byte is wrong."""
    at_once = max(1, min(most, _AT_ONCE_BYTES // size))
    count = max(4, min(512, round_bytes // size))
    area = at_once * size
    target[:area] = 0
    begun_s = time.perf_counter()
    await contender.pull(size, count, at_once)
    seconds = time.perf_counter() - begun_s
    if not np.array_equal(target[:area], wanted[:area]):
        raise StartupError(f"{contender.name} moved wrong bytes")
    return count * size / seconds / 1e9


def _turned(contenders: Sequence[Contender], number: int) -> list[Contender]:
    shift = number % len(contenders)
    return [*contenders[shift:], *contenders[:shift]]


async def _open(
    stack: contextlib.AsyncExitStack, name: str, target: Bytes, transport: str
) -> Contender:
    where = await stack.enter_async_context(_owner(name, transport))
    contender: Contender
    match name:
        case "plane":
            contender = await PlaneContender.open(target, where, transport)
        case "raw":
            lane = Lane.TCP if transport == "tcp" else Lane.SHM
            contender = RawContender(RawReader(target, int(where), lane))
        case _:
            contender = await TcpContender.open(target, int(where))
    stack.push_async_callback(contender.close)
    return contender


@contextlib.asynccontextmanager
async def _owner(name: str, transport: str) -> AsyncIterator[str]:
    """A child process; what it printed says where it is. Its end of input ends it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadgen.handoff.owner",
        name,
        transport,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        if process.stdout is None:
            raise StartupError("the owner has no output")
        async with asyncio.timeout(_START_S):
            where = (await process.stdout.readline()).decode().strip()
        yield where
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
