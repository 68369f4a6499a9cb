"""`make sim-placement`: every placement policy on the same arrivals, costs and GPUs.

The five live cores on virtual time; a row per workload and policy; the last line is JSON. Figures
are shares and ratios: nothing depends on the speed of this machine.

Each workload is drawn several times, and a policy's figures are the means of its draws: one short
draw says more about dice than about policies. The first draw is for all; the others for those that
may still be best.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

import orjson

from loadgen.placement_scenes import COLD, Scene, scenes
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.figures import WARM_SHARE, Figures, percentile, summarise
from loadgen.sim.fleet.fleet import Fleet
from loadgen.workloads.request import Workload, WorkloadError
from services.prefill.core.turns import GROUPS, aged_bound_tokens
from services.scheduler.core.placement.registry import POLICIES

_GIGA: Final = 1e9
_OURS: Final = "baton"
_CHEAPEST: Final = "local_ttft"
"""Waits and own computation alone: what a minimum of costs without prices does."""
_CLOSE: Final = 1e-9
_SEED: Final = 7
_LIFTED_S: Final = 0.1 * (GROUPS - 1) + 0.25
"""Nine ages of a tenth of a second, and the tick at which the last one counts."""
_READY_STEPS: Final = 2
"""Work that has its pages and goes before whatever waits for its turn."""
_BEST: Final = 6
"""Policies that are drawn again for their TTFT ..."""
_BEST_GOOD: Final = 3
"""... and for their goodput."""


@dataclass(frozen=True, slots=True)
class Cold:
    """Requests that share nothing: how long they waited for their turn, and how long they might
    have: until waiting has lifted them to the highest group, and then as long as what
    `turns.aged_bound_tokens` says takes to compute, with all that were open when they came before
    them."""

    requests: int
    wait_p99_s: float
    bound_s: float
    """The least bound of any of them."""
    beyond: int
    """That waited for longer than their bound."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One policy under one draw."""

    figures: Figures
    cold: Cold | None
    possible: float = 0.0
    """Share of prompt tokens that one cache without end would have had."""


Cell = tuple[Drawn, ...]
"""All draws of one policy."""


def measure(scene: Scene, policy: str, data: Path, draw: int = 0) -> Drawn:
    """One draw of one cell. Raises WorkloadError."""
    rows: list[Row] = []
    drawn = scene.drawn(draw)
    workload = drawn.workload(data)
    tenants = [request.tenant for request in workload]
    fleet = Fleet(drawn.design(policy), workload, seed=_SEED + draw)
    spent = fleet.run(rows.append)
    apart = [row for row in rows if tenants[row.number] == COLD]
    cold = _waits(drawn, apart, rows) if apart else None
    figures = summarise(rows, spent, scene.slo)
    # Offered rate times attainment: how long the last answers of a short run take says nothing.
    figures = replace(figures, goodput_per_s=figures.attainment * scene.wish.rate_per_s)
    return Drawn(figures, cold, _possible(drawn, workload))


def _possible(scene: Scene, workload: Workload) -> float:
    """Of the rows that figures count, in whole blocks of the fleet, less each last token."""
    seen: set[int] = set()
    cached = total = 0
    for number, request in enumerate(workload):
        known = sum(1 for _ in takewhile(seen.__contains__, request.blocks))
        tokens = min(known * workload.block_tokens, request.prompt_tokens - 1)
        seen.update(request.blocks)
        if number >= WARM_SHARE * len(workload):
            cached += tokens // scene.block_tokens * scene.block_tokens
            total += request.prompt_tokens
    return cached / total if total else 0.0


def _waits(scene: Scene, apart: Sequence[Row], rows: Sequence[Row]) -> Cold:
    """Wait: from sending to the first token, less what computing takes on an idle worker."""
    design = scene.design(_OURS)
    price = design.prefill
    longest = max(_left(row) for row in rows)
    token_s = price.token_s + 2 * price.pair_s * max(row.prompt_tokens for row in rows)
    waits, bounds = [], []
    for row in apart:
        alone_s = price.mixed_s(row.prompt_tokens, row.prompt_tokens**2, 0, 0)
        before = [o for o in rows if o.sent_s < row.sent_s and o.first_s > row.sent_s]
        tokens = aged_bound_tokens(sum(map(_left, before)), longest)
        tokens += _READY_STEPS * design.chunk_tokens + longest
        # Each step has its fixed part; no step but the last of a job has less than a job's tokens.
        steps = tokens / min(min(map(_left, rows)), design.chunk_tokens)
        waits.append(max(0.0, row.ttft_s - alone_s))
        bounds.append(_LIFTED_S + steps * price.step_s + tokens * token_s)
    return Cold(
        requests=len(waits),
        wait_p99_s=percentile(sorted(waits), 99),
        bound_s=min(bounds),
        beyond=sum(wait > bound for wait, bound in zip(waits, bounds, strict=True)),
    )


def _left(row: Row) -> int:
    """Tokens that it had to compute."""
    return row.prompt_tokens - row.cached_tokens


def mean(cell: Cell, name: str) -> float:
    """Of one figure over all draws."""
    return statistics.fmean(getattr(drawn.figures, name) for drawn in cell)


def main(options: argparse.Namespace) -> int:
    """All scenes that match; 0 whatever the figures."""
    wanted = [s for s in scenes(options.scale) if options.only in s.name]
    policies = [p for p in POLICIES if not options.policies or p in options.policies]
    lines: list[dict[str, object]] = []
    extras: dict[str, object] = {}
    begun_s = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, scene in enumerate(wanted, start=1):
            try:
                row = contest(scene, policies, options, pool)
            except WorkloadError as error:
                print(f"{scene.name}: left out, {error}", file=sys.stderr)
                continue
            gone_s = time.monotonic() - begun_s
            print(f"{number} of {len(wanted)} scenes, {gone_s:.0f} s", file=sys.stderr, flush=True)
            _table(scene, row)
            if _OURS in row:
                extras |= _extras(scene.name, row)
                if len(row) > 1:
                    lines.append(against(scene.name, row))
                    print(orjson.dumps(lines[-1]).decode(), flush=True)
    summary: dict[str, object] = {"bench": "placement", "rows": lines, **extras}
    summary["wall_s"] = round(time.monotonic() - begun_s, 1)
    print(orjson.dumps(summary).decode())
    return 0


def contest(
    scene: Scene, policies: Sequence[str], options: argparse.Namespace, pool: ProcessPoolExecutor
) -> dict[str, Cell]:
    """The first draw of all, then the others of those that may still be best. Raises
    WorkloadError."""

    def run(chosen: Sequence[str], draws: range) -> dict[str, Cell]:
        futures = {
            p: [pool.submit(measure, scene, p, options.data, draw) for draw in draws]
            for p in chosen
        }
        return {p: tuple(future.result() for future in found) for p, found in futures.items()}

    row = run(policies, range(1))
    more = run(_within_reach(row), range(1, min(scene.draws, options.draws)))
    return row | {policy: row[policy] + cell for policy, cell in more.items()}


def _within_reach(row: Mapping[str, Cell]) -> list[str]:
    by_ttft = sorted(row, key=lambda policy: mean(row[policy], "ttft_mean_s"))
    by_good = sorted(row, key=lambda policy: -mean(row[policy], "goodput_per_s"))
    chosen = {_OURS, _CHEAPEST, *by_ttft[:_BEST], *by_good[:_BEST_GOOD]}
    return [policy for policy in row if policy in chosen]


def against(name: str, row: Mapping[str, Cell]) -> dict[str, object]:
    """Ours to the best rival: goodput above 1 is better, TTFT below 1 is. Rivals count that were
    drawn as often."""
    ours = row[_OURS]
    rivals = {p: c for p, c in row.items() if p != _OURS and len(c) == len(ours)}
    good = max(mean(cell, "goodput_per_s") for cell in rivals.values())
    best = min(rivals, key=lambda policy: mean(rivals[policy], "ttft_mean_s"))
    found: dict[str, object] = {
        "workload": name,
        "baton_vs_best_goodput": round(mean(ours, "goodput_per_s") / max(good, _CLOSE), 3),
        "baton_vs_best_ttft": round(_ratio(ours, rivals[best]), 3),
        "error": round(_error(ours, rivals[best]), 3),
        "best_ttft": best,
        "draws": len(ours),
    }
    if _CHEAPEST in rivals:
        found["baton_vs_cost_minimum_ttft"] = round(_ratio(ours, rivals[_CHEAPEST]), 3)
    return found


def _ratio(ours: Cell, other: Cell) -> float:
    return mean(ours, "ttft_mean_s") / max(mean(other, "ttft_mean_s"), _CLOSE)


def _error(ours: Cell, other: Cell) -> float:
    """Standard error of the ratio of mean TTFTs, draw by draw; 0 of a single draw."""
    if len(ours) < 2:
        return 0.0
    ratios = [
        one.figures.ttft_mean_s / max(two.figures.ttft_mean_s, _CLOSE)
        for one, two in zip(ours, other, strict=True)
    ]
    return statistics.stdev(ratios) / math.sqrt(len(ratios))


def _extras(name: str, row: Mapping[str, Cell]) -> dict[str, object]:
    ours = row[_OURS]
    possible = statistics.fmean(drawn.possible for drawn in ours)
    match name:
        case "96 groups":
            p99_s = mean(ours, "ttft_p99_s")
            rivals = [c for p, c in row.items() if p != _OURS and len(c) == len(ours)]
            best_s = min((mean(cell, "ttft_p99_s") for cell in rivals), default=p99_s)
            ratio = round(p99_s / max(best_s, _CLOSE), 3)
            return {
                "hit_96_groups": round(mean(ours, "hit"), 3),
                "possible_96_groups": round(possible, 3),
                "p99_96_groups_vs_best": ratio,
            }
        case "one hot prefix":
            return {
                "hot_max_over_mean": round(mean(ours, "max_over_mean"), 3),
                "hot_hit": round(mean(ours, "hit"), 3),
                "hot_hit_of_possible": round(mean(ours, "hit") / max(possible, _CLOSE), 3),
            }
        case "cold under 95 % hot":
            colds = [drawn.cold for drawn in ours if drawn.cold is not None]
            return {
                "cold_wait_p99_s": round(max(cold.wait_p99_s for cold in colds), 3),
                "cold_bound_s": round(min(cold.bound_s for cold in colds), 2),
                "cold_beyond_bound": sum(cold.beyond for cold in colds),
            }
        case _:
            return {}


def _table(scene: Scene, row: Mapping[str, Cell]) -> None:
    possible = statistics.fmean(drawn.possible for drawn in next(iter(row.values())))
    print(
        f"\n{scene.name}: {scene.wish.count} requests a draw, {scene.workers} prefill workers, "
        f"{possible:.3f} could be hits"
    )
    cold = any(drawn.cold for cell in row.values() for drawn in cell)
    head = f"{'policy':<22}{'draws':>6}{'hit':>7}{'TTFT mean':>11}{'p99 s':>9}{'good/s':>9}"
    print(f"{head}{'max/mean':>10}{'GB':>8}" + ("   cold: p99 wait, bound s" if cold else ""))
    for policy, cell in sorted(row.items(), key=lambda item: mean(item[1], "ttft_mean_s")):
        last = f"{mean(cell, 'max_over_mean'):>10.2f}{mean(cell, 'moved_bytes') / _GIGA:>8.0f}"
        if cold:
            colds = [drawn.cold for drawn in cell if drawn.cold is not None]
            waited_s = max(found.wait_p99_s for found in colds)
            last += f"{waited_s:>17.3f}{min(found.bound_s for found in colds):>9.1f}"
        print(
            f"{policy:<22}{len(cell):>6}{mean(cell, 'hit'):>7.3f}"
            f"{mean(cell, 'ttft_mean_s'):>11.3f}{mean(cell, 'ttft_p99_s'):>9.2f}"
            f"{mean(cell, 'goodput_per_s'):>9.2f}{last}",
            flush=True,
        )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sim_placement",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--only", default="", help="scenes whose name contains this")
    parser.add_argument("--policies", nargs="*", default=[], choices=POLICIES, help="none: all")
    parser.add_argument("--scale", type=float, default=0.25, help="of the number of requests")
    parser.add_argument("--draws", type=int, default=20, help="most draws of a workload")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="public traces")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(parse(sys.argv[1:])))
