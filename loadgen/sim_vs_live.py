"""`make sim-vs-live`: the same requests on the live local cluster and in the simulator.

Three loads are compared: TTFT, TPOT and goodput, the simulator's error in percent of the live
figure. Each has a calibrating load before and after it, with other prompts of other lengths: prices
are fitted to these two alone, so that a machine whose other work changes between loads is met as it
was. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from loadgen import arrivals, prompts, records, sim_calibrate
from loadgen.calibration.learn import Learnt, learn
from loadgen.calibration.replayed import Compared, compare, design, template_tokens
from loadgen.calibration.run_folder import RunError, Served, joined, read_rows, write_spans
from loadgen.client import Target, send_all
from loadgen.sim.fleet.design import DesignError
from loadgen.sim.fleet.figures import Slo
from loadgen.workloads.request import WorkloadError
from services.fetch import BUILT_IN, resolve
from services.local import LocalCluster, LocalSettings
from services.topology import Topology, read_topology
from shared.errors import StartupError

_SETTLED_S: Final = 4.0
"""Spans arrive in batches."""
_USAGE: Final = 2


@dataclass(frozen=True, slots=True)
class Load:
    """Words of prompts and tokens of answers, each in turn; share of words that others have too."""

    name: str
    words: tuple[int, ...]
    tokens: tuple[int, ...]
    share: float = 0.0


CALIBRATES: Final = Load("calibrates", (32, 280, 120), (16, 40))
"""Of several lengths: one alone does not tell what a token costs from what a step costs, nor what
follows each prompt once, as its copy in the pool, from what its length costs each step."""
_GROUPS: Final = (1, 4, 1, 2, 8)
"""Requests at once, in turn."""
COMPARED: Final = (
    Load("long answers", (48,), (48,)),
    Load("long prompts", (320,), (12,)),
    Load("shared prompts", (200,), (24,), 0.75),
)


@dataclass(frozen=True, slots=True)
class Calibrating:
    """One calibrating load."""

    rows: tuple[Served, ...]
    traces: list[list[dict[str, object]]]


def main(options: argparse.Namespace) -> int:
    """0 when all was compared, however far off; 1 where a load failed, 2 at a wrong start."""
    try:
        return asyncio.run(_play(options))
    except StartupError as error:
        print(f"sim-vs-live: {' '.join(error.message.split())}", file=sys.stderr)
        return _USAGE
    except (RunError, DesignError, WorkloadError, aiohttp.ClientError) as error:
        print(f"sim-vs-live: {error}", file=sys.stderr)
        return 1


async def _play(options: argparse.Namespace) -> int:
    topology, model = read_topology(options.topology), resolve(options.model, print)
    if model == BUILT_IN:
        topology = topology.with_engine(BUILT_IN)
    folder = Path(options.run_dir)
    cluster = _cluster(topology, model, folder)
    await cluster.start()
    try:
        known = [await _calibrated(cluster, 0, folder, options)]
        rest = []
        for number, load in enumerate(COMPARED, 1):
            rest.append(await _served(cluster, load, number, folder, options))
            known.append(await _calibrated(cluster, number, folder, options))
    finally:
        await cluster.drain()
    counts = [topology.group(role).count for role in ("prefill", "decode")]
    slo = _slo(known[0].rows)
    found: dict[str, list[Compared]] = {}
    for number, (load, rows) in enumerate(zip(COMPARED, rest, strict=True)):
        around = known[number : number + 2]
        learnt = _learnt(load.name, around)
        print(f"\nprices around {load.name}")
        sim_calibrate.show(learnt)
        fleet = design(learnt.costs, *counts)
        found[load.name] = compare(
            fleet, rows, load.share, slo, template_tokens([c.rows for c in around])
        )
    _print(found, slo)
    return 0


def _learnt(name: str, around: Sequence[Calibrating]) -> Learnt:
    traces = [spans for one in around for spans in one.traces]
    return learn(name, joined([one.rows for one in around]), traces, sim_calibrate.KV_TOKENS)


def _cluster(topology: Topology, model: str, folder: Path) -> LocalCluster:
    gateway = topology.group("gateway").changed(port=0, admin_port=0, traces_port=0)
    settings = LocalSettings(
        topology=topology.changed(gateway),
        model_path=model,
        run_dir=folder / "cluster",
        restart=False,
    )
    return LocalCluster(settings, print)


async def _calibrated(
    cluster: LocalCluster, number: int, folder: Path, options: argparse.Namespace
) -> Calibrating:
    """The calibrating load once more, with its spans, which are kept beside its rows."""
    rows = await _served(cluster, CALIBRATES, number, folder, options)
    # The store is another process: it has everything a moment after the last answer.
    await asyncio.sleep(_SETTLED_S)
    traces = await sim_calibrate.fetched(cluster.admin_url, [row.trace_id for row in rows])
    write_spans(_folder(folder, CALIBRATES, number), traces)
    return Calibrating(rows, traces)


async def _served(
    cluster: LocalCluster, load: Load, number: int, folder: Path, options: argparse.Namespace
) -> tuple[Served, ...]:
    """Send one load after a short one that warms everything up; its answered rows."""
    warm = argparse.Namespace(**vars(options))
    warm.count = 2
    await _sent(cluster, load, number, warm)
    rows = await _sent(cluster, load, number, options)
    where = _folder(folder, load, number)
    records.write_csv(rows, where / "requests.csv")
    answered = sum(row.outcome == "ok" for row in rows)
    print(f"{load.name}: {answered} of {len(rows)} answered", flush=True)
    return read_rows(where)


async def _sent(
    cluster: LocalCluster, load: Load, number: int, options: argparse.Namespace
) -> list[records.Row]:
    if load is CALIBRATES:
        schedule = in_groups(options.rate, options.count)
    else:
        schedule = arrivals.poisson(options.rate, options.count, options.seed * 100 + number)
    # Every load, and each warming up, has prompts of its own.
    seed = number * 1_000_000 + options.count + options.seed * 100_000_000
    plans = [
        prompts.PromptPlan(words, round(words * load.share), 2, seed + words * 1_000)
        for words in load.words
    ]
    drawn = [prompts.build(plan, options.count) for plan in plans]
    texts = [
        replace(drawn[n % len(drawn)][n], max_tokens=load.tokens[n % len(load.tokens)])
        for n in range(options.count)
    ]
    target = Target(
        cluster.url, "", max(load.tokens), temperature=0.0, ignore_eos=True, timeout_s=300.0
    )
    return await send_all(target, schedule, texts)


def in_groups(rate: float, count: int) -> tuple[float, ...]:
    """Requests that come one, two, four or eight at once, as many a second on average. How many
    decode side by side is then decided here: where arrivals are drawn, a slow moment makes answers
    overlap, and slowness would be taken for what a further sequence costs."""
    times: list[float] = []
    for size in itertools.cycle(_GROUPS):
        times += [len(times) / rate] * min(size, count - len(times))
        if len(times) >= count:
            return tuple(times)
    return tuple(times)


def _folder(folder: Path, load: Load, number: int) -> Path:
    return folder / f"{number}-{load.name.replace(' ', '-')}"


def _slo(rows: Sequence[Served]) -> Slo:
    """Twice the median TTFT and 1.5 times the median TPOT of the calibrating load."""
    ttft, tpot = (
        sorted(values) for values in zip(*((r.ttft_s, r.tpot_s) for r in rows), strict=True)
    )
    middle = len(rows) // 2
    return Slo(2 * ttft[middle], 1.5 * tpot[middle])


def _print(found: dict[str, list[Compared]], slo: Slo) -> None:
    print(f"\n{'load':<18}{'figure':<18}{'live':>10}{'simulated':>12}{'error %':>10}")
    for name, figures in found.items():
        for f in figures:
            print(
                f"{name:<18}{f.name:<18}{f.live:>10.4f}{f.simulated:>12.4f}{f.error_percent:>10.1f}"
            )
    errors = {
        name: {f.name: round(f.error_percent, 1) for f in figures}
        for name, figures in found.items()
    }
    worst = max(abs(value) for figures in errors.values() for value in figures.values())
    objectives = {"ttft_s": round(slo.ttft_s, 4), "tpot_s": round(slo.tpot_s, 5)}
    line = {"bench": "sim-vs-live", "error_percent": errors, "worst": worst, "slo": objectives}
    print(orjson.dumps(line).decode())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sim_vs_live",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", default="", help="as of python -m services")
    parser.add_argument("--topology", default="ops/topology.toml")
    parser.add_argument("--run-dir", default=time.strftime("results/vs-live-%Y%m%d-%H%M%S"))
    parser.add_argument("--count", type=int, default=32, help="requests of each load")
    parser.add_argument("--rate", type=float, default=1.0, help="requests/s")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(parse(sys.argv[1:])))
