"""How much handoffs slow down the sequences that a decode worker is generating.

Streams run on the decode worker while long prompts are computed elsewhere: in turn by the prefill
worker that hands them over to it, and by the other cluster, which costs the machine the same and
this decode worker nothing. What differs is the handoff.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from typing import Final

from loadgen.handoff.clusters import Side, fresh_prompt, note

STREAMS: Final = 4
_STREAM_TOKENS: Final = 4000
_STREAM_PROMPT: Final = 48
_FIRST_TOKENS_S: Final = 120.0
_STANDSTILL_S: Final = 60.0


@dataclass(slots=True)
class Pace:
    """Milliseconds between two tokens of a stream, per pair of windows."""

    quiet_ms: list[float] = field(default_factory=list)
    handoff_ms: list[float] = field(default_factory=list)

    @property
    def changes(self) -> list[float]:
        pairs = zip(self.handoff_ms, self.quiet_ms, strict=True)
        return [handoff / quiet - 1 for handoff, quiet in pairs]

    def figures(self) -> dict[str, float]:
        changes = self.changes
        return {
            "tpot_quiet_ms": round(statistics.median(self.quiet_ms), 2),
            "tpot_handoff_ms": round(statistics.median(self.handoff_ms), 2),
            "tpot_change": round(statistics.median(changes), 4),
            "tpot_change_min": round(min(changes), 4),
            "tpot_change_max": round(max(changes), 4),
            "pairs": len(changes),
        }


class Streams:
    """The sequences that run all the time, and how many pieces they got."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._pieces = [0] * STREAMS
        self._begun = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; a stream that ends is followed by another."""
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(self._one(number), name=f"stream-{number}")

    async def begun(self) -> None:
        async with asyncio.timeout(_FIRST_TOKENS_S):
            await self._begun.wait()

    async def tpot_ms(self, side: Side, text: str) -> float:
        """The pace while `side` computes this prompt, until its first token, or the next piece of a
        stream where that comes later. Raises TimeoutError: the streams stand still."""
        begun_s, before = time.monotonic(), sum(self._pieces)
        first: list[tuple[float, int]] = []
        await side.ask(text, lambda _: first.append((time.monotonic(), sum(self._pieces))))
        ended_s, after = first[0] if first else (time.monotonic(), sum(self._pieces))
        async with asyncio.timeout(_STANDSTILL_S):
            while after == before:
                await asyncio.sleep(0.001)
                ended_s, after = time.monotonic(), sum(self._pieces)
        return 1000 * STREAMS * (ended_s - begun_s) / (after - before)

    async def _one(self, number: int) -> None:
        def piece(_: str) -> None:
            self._pieces[number] += 1
            if all(count > 1 for count in self._pieces):
                self._begun.set()

        text = fresh_prompt(_STREAM_PROMPT, seed=9_000 + number)
        while True:
            await self._side.stream(text, _STREAM_TOKENS, piece)


async def measure(together: Side, split: Side, prompt_tokens: int, pairs: int) -> Pace:
    """Windows in turn, each as long as one prompt takes; which kind is first alternates."""
    pace = Pace()
    streams = Streams(split)
    running = asyncio.create_task(streams.run(), name="streams")
    try:
        await streams.begun()
        for number in range(pairs):
            for quiet in (True, False) if number % 2 else (False, True):
                text = fresh_prompt(prompt_tokens, seed=20_000 + 2 * number + quiet)
                found = await streams.tpot_ms(together if quiet else split, text)
                (pace.quiet_ms if quiet else pace.handoff_ms).append(found)
            note(f"pace {number + 1}/{pairs}")
    finally:
        running.cancel()
        await asyncio.wait({running})
    return pace
