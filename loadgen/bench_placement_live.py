"""`make bench-placement-live`: do policies rank on real processes as they do in the simulator?

Three workloads, scaled down: one hot prefix, Zipf 1.1 over 40 prefixes, groups that do not fit into
one cache. For each policy a cluster of four prefill and two decode workers with weightless engines
at a given pace is started, asked, and drained; policies take turns, all get the same arrivals. The
simulator plays the same rows at the same pace. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from loadgen import arrivals
from loadgen.bench_phase_shift import supervised
from loadgen.client import ChatClient, Target, first_model
from loadgen.handoff.clusters import note
from loadgen.records import Row
from loadgen.sim.fleet import callers
from loadgen.sim.fleet.design import Design, Link
from loadgen.sim.fleet.fleet import Fleet
from loadgen.sim.fleet.prices import TOY, DecodePrice
from loadgen.workloads.prefixes import BLOCK_TOKENS, Family, families
from loadgen.workloads.request import Workload
from services.scheduler.core.placement.registry import POLICIES
from services.topology import DEFAULT, Topology, Value
from shared.errors import StartupError

STEP_S: Final = 0.1
TOKEN_S: Final = 8e-4
DECODE_S: Final = 0.006
"""Twenty times the toy model's prefill: what these processes need themselves is small beside it."""
_CHUNK_TOKENS: Final = 2_048
_PREFILLS: Final = 4
_DECODES: Final = 2
_TIMEOUT_S: Final = 120.0
_FAR: Final = 0.1
"""Simulated TTFTs that differ by less than this share are no order to confirm."""
_WARM_SHARE: Final = 0.1
_USUAL: Final = ("baton", "round_robin", "preble_e2", "sglang_cache_aware")


@dataclass(frozen=True, slots=True)
class Scaled:
    """One workload: requests a second, and pages of a prefill worker."""

    name: str
    family: Family
    rate_per_s: float
    pages: int

    def workload(self, seconds: float, seed: int) -> Workload:
        count = max(20, round(self.rate_per_s * seconds))
        times = arrivals.poisson(self.rate_per_s, count, seed)
        return families(self.name, self.family, times, seed)


WORKLOADS: Final = (
    Scaled("one hot prefix", Family(1, 2_000, 200, 8), 9.0, 20_000),
    Scaled("zipf 1.1 x 40 prefixes", Family(40, 2_000, 200, 8, zipf=1.1), 2.0, 3_750),
    Scaled("24 groups", Family(24, 1_696, 154, 8), 3.0, 1_024),
)


@dataclass(frozen=True, slots=True)
class Found:
    """One policy on one workload, over all rounds."""

    live_s: float
    live_hit: float
    simulated_s: float
    simulated_hit: float
    failed: int
    requests: int


def topology(policy: str, pages: int) -> Topology:
    """Colocation off: every prompt is placed on a prefill worker, as in the simulator."""
    found = DEFAULT
    counts = (("scheduler", 1), ("prefill", _PREFILLS), ("decode", _DECODES), ("kvpool", 0))
    for role, count in counts:
        found = found.with_count(role, count)
    pace = f"{STEP_S * 1e3:g},{TOKEN_S * 1e3:g},{DECODE_S * 1e3:g},0"
    settings: dict[str, dict[str, Value]] = {
        "gateway": {"port": 0, "admin_port": 0, "traces_port": 0},
        "scheduler": {
            "policy": policy,
            "split": "always",
            "admission": "none",
            "planner": "off",
        },
        "prefill": {"pace": pace, "kv_pages": pages, "chunk_tokens": _CHUNK_TOKENS},
        "decode": {"pace": pace, "kv_pages": 16_384},
    }
    for role, entries in settings.items():
        found = found.changed(found.group(role).changed(**entries))
    return found.with_engine("hashchain")


def prompt(blocks: Sequence[int], tokens: int, seed: int) -> list[int]:
    """Printable tokens, equal where blocks are."""
    found: list[int] = []
    for block in blocks:
        chance = random.Random(f"{seed}:{block}")
        found += [chance.randrange(33, 127) for _ in range(BLOCK_TOKENS)]
    return found[:tokens]


async def live(scaled: Scaled, workload: Workload, policy: str, seed: int) -> list[Row]:
    """One cluster from its start to its end. Raises StartupError."""
    async with supervised(topology(policy, scaled.pages), note) as cluster:
        model = await first_model(cluster.http, cluster.url)
        wish = Target(cluster.url, model, scaled.family.output_tokens, 0.0, True, _TIMEOUT_S)
        begun_s = time.monotonic()
        client = ChatClient(cluster.http, wish, begun_s)
        rows: list[Row] = []
        async with asyncio.TaskGroup() as tasks:
            for number, request in enumerate(workload):
                asked = prompt(request.blocks, request.prompt_tokens, seed)
                await asyncio.sleep(max(0.0, begun_s + request.at_s - time.monotonic()))
                rows.append(Row(number, 0, request.at_s, ""))
                tasks.create_task(client.complete(asked, rows[-1]), name=f"ask-{number}")
    return rows


def simulated(scaled: Scaled, workload: Workload, policy: str) -> list[callers.Row]:
    """The same rows at the same pace."""
    price = replace(TOY, step_s=STEP_S, token_s=TOKEN_S, pair_s=0.0, kv_token_bytes=64)
    decode = replace(price, decode=DecodePrice(DECODE_S, 0.0, 0.0), kv_tokens=16_384 * BLOCK_TOKENS)
    design = Design(
        prefills=_PREFILLS,
        decodes=_DECODES,
        prefill=replace(price, kv_tokens=scaled.pages * BLOCK_TOKENS),
        decode=decode,
        link=Link(bytes_per_s=1e9),
        block_tokens=BLOCK_TOKENS,
        chunk_tokens=_CHUNK_TOKENS,
        policy=policy,
        split="always",
        heartbeat_s=1.0,
    )
    rows: list[callers.Row] = []
    Fleet(design, workload, seed=1).run(rows.append)
    return sorted(rows, key=lambda row: row.number)


def judged(scaled: Scaled, runs: Sequence[tuple[list[Row], list[callers.Row]]]) -> Found:
    """Means of what was answered, without the first tenth of each run."""
    lived, played, failed = [], [], 0
    for rows, simulated_rows in runs:
        cut = int(len(rows) * _WARM_SHARE)
        failed += sum(row.outcome != "ok" for row in rows)
        lived += [row for row in rows[cut:] if row.outcome == "ok" and row.ttft_s is not None]
        played += simulated_rows[cut:]
    return Found(
        live_s=statistics.fmean([row.ttft_s or 0.0 for row in lived]) if lived else 0.0,
        live_hit=_share(sum(r.cached_tokens or 0 for r in lived), [r.prompt_tokens for r in lived]),
        simulated_s=statistics.fmean([row.ttft_s for row in played]),
        simulated_hit=_share(
            sum(row.cached_tokens for row in played), [row.prompt_tokens for row in played]
        ),
        failed=failed,
        requests=sum(len(rows) for rows, _ in runs),
    )


def _share(cached: int, prompts: Sequence[int | None]) -> float:
    whole = sum(tokens or 0 for tokens in prompts)
    return cached / whole if whole else 0.0


def order(found: dict[str, Found]) -> tuple[int, int]:
    """Pairs of policies that the simulator tells apart, and in how many the live order is the
    same."""
    pairs = agree = 0
    names = list(found)
    for place, one in enumerate(names):
        for two in names[place + 1 :]:
            a, b = found[one], found[two]
            if abs(a.simulated_s - b.simulated_s) <= _FAR * min(a.simulated_s, b.simulated_s):
                continue
            pairs += 1
            agree += (a.live_s < b.live_s) == (a.simulated_s < b.simulated_s)
    return pairs, agree


async def main(options: argparse.Namespace) -> int:
    """Play, print a table and the line; 0 whatever the figures."""
    lines: dict[str, object] = {}
    pairs = agree = 0
    for scaled in WORKLOADS:
        runs: dict[str, list[tuple[list[Row], list[callers.Row]]]] = {}
        for number in range(options.rounds):
            workload = scaled.workload(options.seconds, options.seed + number)
            turn = number % len(options.policies)
            for policy in (*options.policies[turn:], *options.policies[:turn]):
                rows = await live(scaled, workload, policy, options.seed + number)
                both = rows, simulated(scaled, workload, policy)
                runs.setdefault(policy, []).append(both)
        found = {policy: judged(scaled, done) for policy, done in runs.items()}
        _table(scaled, found)
        told, same = order(found)
        pairs, agree = pairs + told, agree + same
        lines[scaled.name] = {policy: _line(row) for policy, row in found.items()}
    summary = {"bench": "placement-live", "pairs": pairs, "in_the_simulated_order": agree}
    sys.stdout.write(orjson.dumps({**summary, "workloads": lines}).decode() + "\n")
    return 0


def _line(row: Found) -> dict[str, float | int]:
    return {
        "live_ttft_s": round(row.live_s, 4),
        "simulated_ttft_s": round(row.simulated_s, 4),
        "live_hit": round(row.live_hit, 3),
        "simulated_hit": round(row.simulated_hit, 3),
        "requests": row.requests,
        "failed": row.failed,
    }


def _table(scaled: Scaled, found: dict[str, Found]) -> None:
    sys.stdout.write(f"\n{scaled.name}\n{'policy':<22}{'TTFT live':>11}{'simulated':>11}")
    sys.stdout.write(f"{'hit live':>10}{'simulated':>11}{'failed':>8}\n")
    for policy, row in sorted(found.items(), key=lambda entry: entry[1].live_s):
        sys.stdout.write(
            f"{policy:<22}{row.live_s:>11.3f}{row.simulated_s:>11.3f}{row.live_hit:>10.3f}"
            f"{row.simulated_hit:>11.3f}{row.failed:>8}\n"
        )
    sys.stdout.flush()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadgen.bench_placement_live")
    parser.add_argument("--policies", nargs="+", default=list(_USUAL), choices=POLICIES)
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals in each run")
    parser.add_argument("--rounds", type=int, default=1, help="with other arrivals each")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and prompts")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(parse(sys.argv[1:]))))
    except StartupError as error:
        sys.exit(f"bench-placement-live: {error.message}")
