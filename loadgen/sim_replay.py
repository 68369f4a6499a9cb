"""`python -m loadgen sim replay LOG`: a live scheduler's event log, played again.

Without more flags it must come to the same decisions byte for byte. With --policy or --split it
says what another rule would have answered at each moment, and what that would have done to the
same requests on a simulated fleet like the one in the log.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import orjson

from loadgen.replay import again, world
from loadgen.replay.again import Decisions, Played
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design
from loadgen.sim.fleet.figures import Figures, Slo, summarise
from loadgen.sim.fleet.fleet import Fleet
from loadgen.workloads import file
from loadgen.workloads.request import Workload
from services.scheduler.core.placement.registry import POLICIES
from services.scheduler.core.placement.split import SPLITS

NAME: Final = "replay"
TEXT: Final = "a live event log again: the same decisions, or those of another policy"


def add_arguments(part: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    part.add_argument("log", type=Path, help="what a scheduler wrote to its event_log")
    part.add_argument("--policy", default="", choices=("", *POLICIES), help="instead of its own")
    part.add_argument("--split", default="", choices=("", *sorted(SPLITS)), help="the same")
    part.add_argument("--workload-out", type=Path, help="write the requests as a workload file")
    part.add_argument("--slo", default="ttft:1000,tpot:100", help="milliseconds")


def main(options: argparse.Namespace) -> int:
    """0; 1 where the log's own settings did not lead to its decisions. Raises LogError."""
    if options.workload_out:
        recorded = world.read(options.log).workload
        file.write(recorded, options.workload_out)
        print(f"workload        {options.workload_out}   ({len(recorded)} requests)")
    other = bool(options.policy or options.split)
    played = again.play(options.log, options.policy, options.split)
    line: dict[str, object] = {"bench": "sim-replay", "events": played.events}
    line |= {"asked": played.asked, "same_lines": played.same_lines}
    if not other:
        same = played.same_lines == played.events
        verdict = "the same byte for byte" if same else f"first at {played.first_difference}"
        print(f"{played.events} events, {played.asked} decisions: {verdict}")
        print(orjson.dumps(line | {"same": same}).decode())
        return 0 if same else 1
    _decisions(played)
    figures = _simulated(options)
    _latencies(figures)
    line |= {"same_places": played.same_places}
    line |= {name: asdict(found) for name, found in figures.items()}
    print(orjson.dumps(line).decode())
    return 0


def _decisions(played: Played) -> None:
    print(f"{played.same_places} of {played.asked} answers name the same workers")
    print(
        f"{'':<10}{'placed':>8}{'refused':>9}{'P/D':>7}{'blocks reused':>15}{'est. TTFT':>11}",
        end="",
    )
    print(f"{'max/mean':>10}")
    sides: Sequence[tuple[str, Decisions]] = (("then", played.then), ("other", played.now))
    for name, d in sides:
        mean_s = d.ttft_s / d.placed if d.placed else 0.0
        start = f"{name:<10}{d.placed:>8}{d.refused:>9}{d.disaggregated:>7}{d.cached_blocks:>15}"
        print(f"{start}{mean_s:>11.3f}{d.max_over_mean:>10.2f}")


def _simulated(options: argparse.Namespace) -> dict[str, Figures]:
    """The same requests on a fleet like the log's, under its own and under the other policy."""
    recorded = world.read(options.log)
    placement = again.settings(options.log)[0].placement
    own = replace(recorded.design, policy=placement.policy, split=placement.split)
    other = replace(
        own, policy=options.policy or placement.policy, split=options.split or placement.split
    )
    return {
        "own": _run(own, recorded.workload, options.slo),
        "other": _run(other, recorded.workload, options.slo),
    }


def _run(design: Design, workload: Workload, slo: Slo) -> Figures:
    rows: list[Row] = []
    spent = Fleet(design, workload).run(rows.append)
    return summarise(rows, spent, slo)


def _latencies(figures: dict[str, Figures]) -> None:
    print(f"\n{'simulated':<10}{'TTFT mean s':>12}{'p90 s':>9}{'TPOT p90':>10}{'hit':>7}{'GB':>8}")
    for name, f in figures.items():
        print(
            f"{name:<10}{f.ttft_mean_s:>12.3f}{f.ttft_p90_s:>9.3f}{f.tpot_p90_s:>10.4f}"
            f"{f.hit:>7.2f}{f.moved_bytes / 1e9:>8.2f}"
        )
