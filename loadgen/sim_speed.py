"""`python -m loadgen sim speed`: simulated requests a minute and core, on a few workloads.

Each core plays the same schedule with a seed of its own, so the sum over the cores says what runs
over seeds gain. A stride of 1 has an event for each output token; a larger one is for so many.
`--gpus 1000 --seconds 3600` is an hour of a large fleet; how far it is goes to stderr.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from loadgen.sim.fleet import roofline
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.fleet import Fleet, Progress
from loadgen.spread import spread
from loadgen.workloads.catalogue import Wish, load

NAME: Final = "speed"
TEXT: Final = "how many requests a minute the simulator plays on this machine"
_STRIDE: Final = 16


@dataclass(frozen=True, slots=True)
class Load:
    """A workload, its rate per GPU, and the blocks it is simulated with."""

    name: str
    rate_per_gpu: float
    block_tokens: int


LOADS: Final = (
    Load("zipf", 3.0, 64),
    Load("azure:conv", 1.5, 64),
    Load("mooncake:conversation", 0.15, 512),
)
LARGE: Final = Load("servegen:m-large", 0.08, 64)
"""Where a time is asked for: recorded traces end too soon."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One run: processor seconds, and what was played in them."""

    requests: int
    output_tokens: int
    virtual_s: float
    cpu_s: float
    peak_bytes: int
    """Of its process so far."""

    @property
    def per_minute(self) -> float:
        return self.requests / self.cpu_s * 60


def add_arguments(part: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    part.add_argument("--gpus", type=int, default=64, help="half of them prefill")
    part.add_argument("--count", type=int, default=2_000, help="requests of one run")
    part.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        help="virtual time instead of a count, of one workload",
    )
    part.add_argument("--rate", type=float, default=LARGE.rate_per_gpu, help="per GPU, with that")
    part.add_argument("--jobs", type=int, default=2, help="processes, each with its own seed")
    part.add_argument("--data", type=Path, default=Path("../shared/data"), help="public traces")


def main(options: argparse.Namespace) -> int:
    """A row per workload and stride; the last line is JSON."""
    print(f"{'workload':<24}{'stride':>7}{'tokens out':>12}{'requests/min and core':>23}")
    rows = []
    loads = (replace(LARGE, rate_per_gpu=options.rate),) if options.seconds else LOADS
    for kind in loads:
        for stride in (_STRIDE,) if options.seconds else (1, _STRIDE):
            calls = [partial(timed, kind, stride, options, n) for n in range(options.jobs)]
            found = list(spread(calls, options.jobs))
            mean = sum(one.per_minute for one in found) / len(found)
            out = found[0].output_tokens / found[0].requests
            print(f"{kind.name:<24}{stride:>7}{out:>12.0f}{mean:>23.0f}", flush=True)
            row = {"workload": kind.name, "stride": stride, "per_minute": round(mean)}
            row["cpu_per_virtual_s"] = round(found[0].cpu_s / found[0].virtual_s, 3)
            row["peak_mib"] = max(one.peak_bytes for one in found) >> 20
            rows.append(row)
    line = {"bench": "sim-speed", "gpus": options.gpus, "cores": options.jobs, "rows": rows}
    print(orjson.dumps(line).decode())
    return 0


def timed(kind: Load, stride: int, options: argparse.Namespace, seed: int) -> Timed:
    """One run on one core. Raises DesignError, WorkloadError."""
    rate = kind.rate_per_gpu * options.gpus
    count = round(rate * options.seconds) or options.count
    workload = load(Wish(kind.name, count, rate, seed=seed), options.data)
    tokens = 0

    def take(row: Row) -> None:
        nonlocal tokens
        tokens += row.output_tokens

    fleet = Fleet(design(options.gpus, kind.block_tokens, stride), workload, seed)
    begun_s = time.process_time()
    spent = fleet.run(take, _by_minute() if options.seconds else Progress())
    cpu_s = time.process_time() - begun_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return Timed(len(workload), tokens, spent.seconds, cpu_s, peak_bytes)


def _by_minute() -> Progress:
    """Tells how far a long run is."""
    minute = 0

    def tell(bar: Progress) -> None:
        nonlocal minute
        if bar.now_s >= 60 * (minute + 1):
            minute = int(bar.now_s // 60)
            ended = f"{bar.ended} of {bar.of} requests"
            print(f"{ended}, {minute} min", file=sys.stderr, flush=True)

    return Progress(tell=tell)


def design(gpus: int, block_tokens: int, stride: int) -> Design:
    """Half prefill, half decode."""
    price = roofline.find("llama-3-8b:a100:tp1")
    usual = Design(
        prefills=max(1, gpus // 2),
        decodes=max(1, gpus - gpus // 2),
        prefill=price,
        decode=price,
        link=Link(bytes_per_s=25e9),
        block_tokens=block_tokens,
        route="disaggregated",
    )
    return replace(usual, stride=stride)
