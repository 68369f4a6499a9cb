"""`make bench-phase-shift`: what becomes of goodput when prompts turn into answers.

One live cluster of 2 prefill and 2 decode workers, weightless engines at a given pace: first long
prompts with short answers, then short prompts with long ones. The planner may change roles in one
run and only advise in the other, on the same arrivals. Goodput: share of the requests sent in a
phase that met both objectives. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

from loadgen.arrivals import poisson
from loadgen.client import ChatClient, Target, first_model
from loadgen.handoff.clusters import note
from loadgen.records import Row
from services.local import LocalCluster, LocalSettings
from services.topology import DEFAULT, Topology, Value
from shared.errors import StartupError

PACE: Final = "5,1,20,4"
"""Milliseconds: a prefill step, each of its tokens, a decode step, each further sequence."""
TTFT_SLO_S: Final = 2.0
TPOT_SLO_S: Final = 0.05
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests of one kind."""

    rate_per_s: float
    seconds: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Shift:
    """Two phases, and how the planner looks at them."""

    before: Phase = Phase(2.2, 40.0, 600, 10)
    after: Phase = Phase(2.3, 90.0, 50, 150)
    tick_s: float = 1.0
    window_s: float = 15.0
    cooldown_s: float = 15.0
    seed: int = 1


@dataclass(slots=True)
class Played:
    """What came of it. Times are seconds from the first request."""

    rows: list[Row] = field(default_factory=list)
    shifted_s: float = 0.0
    flips: list[dict[str, Any]] = field(default_factory=list)
    flipped_s: float | None = None
    """When the first change of a role was over."""
    reasons: list[str] = field(default_factory=list)

    def share(self, since_s: float, until_s: float) -> float:
        """Of the requests that were to be sent within it, how many met both objectives."""
        sent = [row for row in self.rows if since_s <= row.intended_s < until_s]
        return sum(map(good, sent)) / len(sent) if sent else 0.0

    @property
    def failed(self) -> int:
        return sum(row.outcome != "ok" for row in self.rows)

    @property
    def done(self) -> int:
        """Changes of roles that were carried out."""
        return sum(flip["outcome"] == "done" for flip in self.flips)


def good(row: Row) -> bool:
    """It ended well, and in time."""
    ttft_s, tpot_s = row.ttft_s, row.tpot_s
    in_time = ttft_s is not None and ttft_s <= TTFT_SLO_S
    return row.outcome == "ok" and in_time and (tpot_s is None or tpot_s <= TPOT_SLO_S)


def topology(shift: Shift, mode: str) -> Topology:
    """Two workers of each engine role, no pool: nothing is shared here."""
    found = DEFAULT
    for role, count in (("scheduler", 1), ("prefill", 2), ("decode", 2), ("kvpool", 0)):
        found = found.with_count(role, count)
    settings: dict[str, dict[str, Value]] = {
        "gateway": {"port": 0, "admin_port": 0, "traces_port": 0},
        "scheduler": {
            "planner": mode,
            "planner_tick_s": shift.tick_s,
            "planner_window_s": shift.window_s,
            "planner_cooldown_s": shift.cooldown_s,
            "planner_colocate": False,
            "admission": "none",
            "ttft_slo_s": TTFT_SLO_S,
            "tpot_slo_s": TPOT_SLO_S,
        },
        "prefill": {"pace": PACE, "kv_pages": 2048},
        "decode": {"pace": PACE, "kv_pages": 2048},
    }
    for role, entries in settings.items():
        found = found.changed(found.group(role).changed(**entries))
    return found.with_engine("hashchain")


async def play(shift: Shift, mode: str, note: Callable[[str], None]) -> Played:
    """One cluster from its start to its end under both phases. Raises StartupError."""
    async with supervised(topology(shift, mode), note) as cluster:
        played = Played(shifted_s=shift.before.seconds)
        model = await first_model(cluster.http, cluster.url)
        chance = random.Random(shift.seed)
        begun_s = time.monotonic()
        asks = clients(cluster, model, begun_s)
        watching = asyncio.create_task(_watch(cluster, played, begun_s), name="watch")
        async with asyncio.TaskGroup() as tasks:
            for at_s, phase in _schedule(shift):
                prompt = [chance.randrange(33, 127) for _ in range(phase.prompt_tokens)]
                row = Row(len(played.rows), 0, at_s, "")
                played.rows.append(row)
                await asyncio.sleep(max(0.0, begun_s + at_s - time.monotonic()))
                asking = asks(phase).complete(prompt, row)
                tasks.create_task(asking, name=f"ask-{row.number}")
        watching.cancel()
        await asyncio.wait({watching})
        played.flips = (await balance(cluster)).get("flips", [])
    return played


def _schedule(shift: Shift) -> Sequence[tuple[float, Phase]]:
    """Poisson in both phases, drawn before the run."""
    found, start_s = [], 0.0
    for number, phase in enumerate((shift.before, shift.after)):
        count = round(phase.rate_per_s * phase.seconds)
        times = poisson(phase.rate_per_s, count, shift.seed + number)
        found += [(start_s + at_s, phase) for at_s in times]
        start_s += phase.seconds
    return found


def clients(cluster: LocalCluster, model: str, begun_s: float) -> Callable[[Phase], ChatClient]:
    """Who asks for the answers of a phase: of exactly its length, within the time limit."""

    def of(phase: Phase) -> ChatClient:
        wish = Target(cluster.url, model, phase.answer_tokens, 0.0, True, _TIMEOUT_S)
        return ChatClient(cluster.http, wish, begun_s)

    return of


async def _watch(cluster: LocalCluster, played: Played, begun_s: float) -> None:
    """Until cancelled: when the first change was over, and why it was made."""
    while True:
        found = await balance(cluster)
        flip = found.get("flip")
        if flip and flip["reason"] not in played.reasons:
            played.reasons.append(flip["reason"])
        if found.get("flips") and played.flipped_s is None:
            played.flipped_s = time.monotonic() - begun_s
        await asyncio.sleep(_LOOK_S)


async def balance(cluster: LocalCluster) -> dict[str, Any]:
    """GET /admin/balance of the scheduler; {} while it does not answer."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        url = cluster.members["scheduler-0"].probe_url
        async with cluster.http.get(f"{url}/admin/balance") as answer:
            return dict(orjson.loads(await answer.read()))
    return {}


@contextlib.asynccontextmanager
async def supervised(wanted: Topology, note: Callable[[str], None]) -> AsyncIterator[LocalCluster]:
    """Started, kept alive, and drained at the end."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        settings = LocalSettings(
            topology=wanted, model_path="hashchain", run_dir=Path(folder) / "run", drain_s=15.0
        )
        cluster, stop = LocalCluster(settings, note), asyncio.Event()
        await cluster.start()
        keeping = asyncio.create_task(cluster.supervise(stop), name="supervise")
        try:
            yield cluster
        finally:
            stop.set()
            await keeping


def summary(shift: Shift, acted: Played, advised: Played | None) -> dict[str, object]:
    """The last line. `during` ends with the first change; `after` begins one window later."""
    end_s = shift.before.seconds + shift.after.seconds
    flipped_s = end_s if acted.flipped_s is None else acted.flipped_s
    settled_s = min(flipped_s + shift.window_s, end_s)
    shifted_s = acted.shifted_s
    found: dict[str, object] = {
        "bench": "phase-shift",
        "goodput_before": round(acted.share(0.0, shifted_s), 3),
        "goodput_during": round(acted.share(shifted_s, flipped_s), 3),
        "goodput_after": round(acted.share(settled_s, end_s), 3),
        "failed": acted.failed,
        "flips": acted.done,
        "flipped_after_s": round(flipped_s - shifted_s, 1),
        "requests": len(acted.rows),
        "failures": dict(
            Counter(f"{r.outcome} {r.reason}" for r in acted.rows if r.outcome != "ok")
        ),
        "reasons": acted.reasons,
    }
    if advised is not None:
        found["advice_only"] = {
            "goodput_before": round(advised.share(0.0, shifted_s), 3),
            "goodput_after": round(advised.share(settled_s, end_s), 3),
            "failed": advised.failed,
            "flips": advised.done,
        }
    return found


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadgen.bench_phase_shift")
    parser.add_argument("--quick", action="store_true", help="half a minute, one run")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and prompts")
    return parser.parse_args(argv)


async def main(options: argparse.Namespace) -> int:
    """Play, and print the line."""
    shift = Shift(seed=options.seed)
    if options.quick:
        before, after = Phase(2.2, 6.0, 600, 10), Phase(2.3, 22.0, 50, 150)
        shift = Shift(before, after, 0.5, 6.0, 6.0, options.seed)
    acted = await play(shift, "act", note)
    advised = None if options.quick else await play(shift, "advise", note)
    sys.stdout.write(orjson.dumps(summary(shift, acted, advised)).decode() + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(parse(sys.argv[1:]))))
    except StartupError as error:
        sys.exit(f"bench-phase-shift: {error.message}")
