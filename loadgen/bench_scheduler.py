"""`make bench-scheduler`: how fast decisions are, and whether they stay so.

(a) The core alone: 8, 64 and 1,000 workers, an index of a million blocks, prompts of 64 and 2,000
blocks, after 100,000 requests. (b) The service through a real NATS server. Time on the wall and on
the processor: on a busy machine only the second one says what a decision costs.

Flatness: afterwards the old cluster and a new one, warmed up, decide in turns, so that whatever
else the machine does slows both. Its measure is the ratio of their medians.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Final

import orjson

from loadgen.ranks import nearest_rank
from loadgen.scheduler_bus import through_nats
from loadgen.scheduler_scene import BLOCK_TOKENS, Scene
from services.scheduler.collecting import Collecting

PROMPTS: Final = (64, 2_000)
_WARM: Final = 1_000
_TICK: Final = 100
"""Requests between two ticks, in which the live service looks for cycles."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Decisions of one kind: seconds on the wall and on the processor, in order."""

    workers: int
    blocks: int
    wall: list[float]
    cpu: list[float]
    first: list[float]
    last: list[float]
    """Processor seconds of the new cluster and of the old one, in turns."""

    def figures(self) -> dict[str, float]:
        """ms, decisions per second, and last against first thousand."""
        return {
            "per_s": round(len(self.cpu) / sum(self.cpu)),
            "p50_ms": ms(statistics.median(self.wall)),
            "p99_ms": ms(nearest_rank(sorted(self.wall), 0.99)),
            "cpu_p50_ms": ms(statistics.median(self.cpu)),
            "cpu_p99_ms": ms(nearest_rank(sorted(self.cpu), 0.99)),
            "flatness": round(statistics.median(self.last) / statistics.median(self.first), 3),
        }


def main(argv: list[str]) -> int:
    """Measure, print both tables and the line of JSON."""
    options = parse(argv)
    print(
        f"{'workers':>8}{'prompt':>8}{'per s':>8}"
        + "".join(
            f"{name:>13}" for name in ("p50 ms", "p99 ms", "cpu p50 ms", "cpu p99 ms", "flatness")
        )
    )
    cells, per_block = [], 0.0
    for workers in options.workers:
        found, bytes_ = measure(workers, options)
        cells += found
        per_block = max(per_block, bytes_)
    bus = asyncio.run(through_nats(options.bus_seconds))
    print(
        f"\nthrough NATS: {bus['per_s']} a second, p50 {bus['p50_ms']} ms, p99 {bus['p99_ms']} ms"
    )
    print(orjson.dumps(summary(cells, per_block, bus)).decode())
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Flags. `--quick` takes a tenth of everything."""
    parser = argparse.ArgumentParser(prog="bench_scheduler", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of blocks and requests")
    parser.add_argument("--policy", default="baton")
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 1_000])
    parser.add_argument("--blocks", type=int, default=1_000_000, help="in the index")
    parser.add_argument("--requests", type=int, default=100_000, help="before the last ones")
    parser.add_argument("--bus-seconds", type=float, default=10.0)
    options = parser.parse_args(argv)
    if options.quick:
        options.blocks //= 10
        options.requests //= 10
        options.bus_seconds = 3.0
    return options


def measure(workers: int, options: argparse.Namespace) -> tuple[list[Cell], float]:
    """All prompts on one cluster, in turn; and bytes per block of the index."""
    gc.collect()
    scene = Scene(workers, options.blocks, options.policy, random.Random(workers))
    collecting = Collecting()
    cells = {blocks: Cell(workers, blocks, [], [], [], []) for blocks in PROMPTS}
    # Long prompts are fifty times dearer to make than to place: one in twenty.
    for number in range(options.requests):
        cell = cells[PROMPTS[number % 20 == 0]]
        wall_s, cpu_s = decide(scene, cell.blocks, number)
        cell.wall.append(wall_s)
        cell.cpu.append(cpu_s)
        if number % _TICK == 0:
            collecting.tick(asked=True)
    new = Scene(workers, options.blocks, options.policy, random.Random(workers))
    edge = max(1, min(_WARM, options.requests // 20))
    for number in range(-edge, 2 * edge):
        cell = cells[PROMPTS[number % 2]]
        for cluster, times in ((new, cell.first), (scene, cell.last)):
            _, cpu_s = decide(cluster, cell.blocks, options.requests + edge + number)
            if number >= 0:
                times.append(cpu_s)
        if number % _TICK == 0:
            collecting.tick(asked=True)
    collecting.stop()
    for cell in cells.values():
        figures = cell.figures()
        row = "".join(f"{figures[name]:>13}" for name in list(figures)[1:])
        print(f"{workers:>8}{cell.blocks:>8}{figures['per_s']:>8}{row}", flush=True)
    return list(cells.values()), scene.bytes_per_block


def decide(scene: Scene, blocks: int, number: int) -> tuple[float, float]:
    """One request: seconds on the wall and on the processor. What it changes in the cluster is
    reported outside the measured time."""
    ask, now = scene.ask(blocks), scene.step()
    wall, cpu = time.perf_counter(), time.thread_time()
    actions = scene.machine.handle(ask, now)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    scene.follow(ask, actions, number)
    return wall, cpu


def summary(cells: list[Cell], per_block: float, bus: dict[str, float]) -> dict[str, object]:
    """The last line."""
    shown = {f"{cell.workers}x{cell.blocks}": cell.figures() for cell in cells}
    bar = [cell.figures() for cell in cells if cell.workers == 64] or list(shown.values())
    return {
        "bench": "scheduler",
        "p99_ms_64_workers": max(figures["p99_ms"] for figures in bar),
        "cpu_p99_ms_64_workers": max(figures["cpu_p99_ms"] for figures in bar),
        "flatness": max(figures["flatness"] for figures in shown.values()),
        "bytes_per_block": round(per_block),
        "block_tokens": BLOCK_TOKENS,
        "bus": bus,
        "cells": shown,
    }


def ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
