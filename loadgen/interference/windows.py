"""One window: some sequences decode, a long prompt arrives, and every gap between two pieces of a
running sequence is kept until the prompt has its first token.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import Final

from loadgen.handoff.clusters import Side, fresh_prompt
from shared.errors import StartupError

STREAM_TOKENS: Final = 4_000
_STREAM_PROMPT: Final = 48
_PATIENCE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Window:
    """Gaps in milliseconds, of all sequences together."""

    quiet_ms: tuple[float, ...]
    """Before the prompt came."""
    busy_ms: tuple[float, ...]
    """Gaps that overlap the time from the prompt's arrival to its first token."""
    ttft_s: float
    prompt_tokens: int


@dataclass(slots=True)
class Streams:
    """Sequences that decode all the time; when each of their pieces came."""

    side: Side
    count: int
    stamps: list[list[float]] = field(default_factory=list)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, seed: int) -> None:
        """Until cancelled."""
        self.stamps = [[] for _ in range(self.count)]
        async with asyncio.TaskGroup() as group:
            for number in range(self.count):
                group.create_task(self._one(number, seed), name=f"stream-{number}")

    async def pieces_after(self, when: float, pieces: int) -> None:
        """Wait until every sequence got so many pieces since `when`."""
        async with asyncio.timeout(_PATIENCE_S):
            while not all(_since(stamps, when) >= pieces for stamps in self.stamps):
                self._moved.clear()
                await self._moved.wait()

    async def _one(self, number: int, seed: int) -> None:
        def piece(_: str) -> None:
            self.stamps[number].append(time.monotonic())
            self._moved.set()

        text = fresh_prompt(_STREAM_PROMPT, seed=seed + number)
        await self.side.stream(text, STREAM_TOKENS, piece)


async def measure(
    side: Side, streams: int, prompt_tokens: int, quiet_pieces: int, seed: int
) -> Window:
    """Raises StartupError when a sequence ended before the prompt had its first token."""
    running = Streams(side, streams, [[] for _ in range(streams)])
    task = asyncio.create_task(running.run(seed), name="streams")
    try:
        await running.pieces_after(0.0, 2)
        quiet_from = time.monotonic()
        await running.pieces_after(quiet_from, quiet_pieces)
        begun, first = time.monotonic(), list[float]()
        text = fresh_prompt(prompt_tokens, seed=seed + streams)
        row = await side.ask(text, lambda _: first.append(time.monotonic()))
        await running.pieces_after(first[0], 1)
        if task.done():
            raise StartupError("a running sequence ended during the measurement")
    finally:
        task.cancel()
        await asyncio.wait({task})
    return Window(
        quiet_ms=gaps(running.stamps, quiet_from, begun, whole=True),
        busy_ms=gaps(running.stamps, begun, first[0], whole=False),
        ttft_s=first[0] - begun,
        prompt_tokens=row.prompt_tokens or 0,
    )


def gaps(stamps: list[list[float]], start: float, stop: float, *, whole: bool) -> tuple[float, ...]:
    """Milliseconds between neighbouring pieces. `whole`: both within [start, stop]; else every
    gap that overlaps it, so that the one that the prompt causes counts even if it ends later."""
    found: list[float] = []
    for times in stamps:
        for before, after in itertools.pairwise(times):
            inside = before >= start and after <= stop
            overlaps = before < stop and after > start
            if inside if whole else overlaps:
                found.append(1000.0 * (after - before))
    return tuple(found)


def _since(stamps: list[float], when: float) -> int:
    return sum(1 for stamp in reversed(stamps) if stamp > when)
