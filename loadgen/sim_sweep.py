"""`python -m loadgen sim sweep AXIS`: one quantity varied, as a table, a CSV and a page with plots.

At each value the same GPUs serve the same workload three ways: colocated with chunks, every request
handed over, and Baton's own choice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from loadgen import sim_flags
from loadgen.sim.fleet import plan
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import Design, DesignError
from loadgen.sim.fleet.figures import Slo, summarise
from loadgen.sim.fleet.fleet import Fleet
from loadgen.spread import spread
from loadgen.sweeps.axes import AXES, Axis, Scene, rivals
from loadgen.sweeps.page import Point, as_csv, as_html
from loadgen.workloads.request import WorkloadError

NAME: Final = "sweep"
TEXT: Final = "one quantity varied: table, CSV and plots"


def add_arguments(part: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    axes = "; ".join(f"{axis.name}: {axis.text}" for axis in AXES.values())
    part.add_argument("axis", choices=sorted(AXES), help=axes)
    part.add_argument("--values", default="", help="comma-separated, instead of the usual ones")
    part.add_argument("--out", type=Path, default=Path("results"), help="folder of CSV and page")
    sim_flags.add_question(part)
    sim_flags.add_fleet(part)
    part.set_defaults(count=200, rate=4.0, prefills=2, decodes=2)


def main(options: argparse.Namespace) -> int:
    """Raises DesignError, WorkloadError or ValueError where no point at all can be."""
    axis = AXES[options.axis]
    values = _values(options.values) or axis.values
    base = Scene(
        sim_flags.design(options), partial(sim_flags.workload, options), options.rate or 1.0
    )
    fleets = rivals(base.design)
    calls = [
        partial(_point, axis, value, name, _at(base, design), options.slo, options.seed)
        for value in values
        for name, design in fleets.items()
    ]
    points: list[Point] = []
    for point in spread(calls, options.jobs):
        points.append(point)
        print(f"{len(points)}/{len(calls)}", end="\r", file=sys.stderr, flush=True)
    if all(point.figures is None for point in points):
        raise DesignError(points[0].why)
    _print(axis, points)
    notes = (_told(options, base.design), axis.text)
    options.out.mkdir(parents=True, exist_ok=True)
    table, page = (options.out / f"sweep-{axis.name}.{kind}" for kind in ("csv", "html"))
    table.write_text(as_csv(axis.name, points), encoding="utf-8")
    page.write_text(as_html(f"Sweep: {axis.name}", _label(axis), notes, points), encoding="utf-8")
    print(f"\n{table}\n{page}")
    line = {"bench": "sim-sweep", "axis": axis.name, "points": len(points), "best": _best(points)}
    print(orjson.dumps(line).decode())
    return 0


def _at(base: Scene, design: Design) -> Scene:
    return Scene(design, base.draw, base.rate_per_s)


def _point(axis: Axis, value: float, name: str, base: Scene, slo: Slo, seed: int) -> Point:
    try:
        scene = axis.apply(base, value)
        rows: list[Row] = []
        spent = Fleet(scene.design, scene.workload(), seed).run(rows.append)
    except (DesignError, WorkloadError) as error:
        return Point(value, name, None, str(error))
    return Point(value, name, summarise(rows, spent, slo))


def _values(text: str) -> tuple[float, ...]:
    """Raises ValueError."""
    try:
        found = tuple(sorted(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise ValueError(f"--values {text!r}: expected numbers, separated by commas") from None
    if any(not 0 <= value < float("inf") for value in found):
        raise ValueError(f"--values {text!r}: expected numbers of at least 0")
    return found


def _print(axis: Axis, points: Sequence[Point]) -> None:
    head = f"{_label(axis):>16}{'fleet':>13}{'TTFT mean s':>13}{'p90 s':>9}{'TPOT p90':>10}"
    print(f"{head}{'attained':>10}{'good/s':>9}{'hit':>7}{'GB':>9}")
    for point in points:
        start, f = f"{point.value:>16g}{point.fleet:>13}", point.figures
        if f is None:
            print(f"{start}  {point.why}")
            continue
        print(
            f"{start}{f.ttft_mean_s:>13.3f}{f.ttft_p90_s:>9.3f}{f.tpot_p90_s:>10.4f}"
            f"{f.attainment:>10.3f}{f.goodput_per_s:>9.2f}{f.hit:>7.2f}{f.moved_bytes / 1e9:>9.1f}"
        )


def _best(points: Sequence[Point]) -> dict[str, str]:
    """Per value, who serves most good requests a second; ties in order of the table."""
    best: dict[str, str] = {}
    for value in dict.fromkeys(point.value for point in points):
        ours = [p for p in points if p.value == value and p.figures is not None]
        if ours:
            first = max(ours, key=lambda p: p.figures.goodput_per_s if p.figures else 0.0)
            best[f"{value:g}"] = first.fleet
    return best


def _label(axis: Axis) -> str:
    return f"{axis.name}, {axis.unit}"


def _told(options: argparse.Namespace, design: Design) -> str:
    slo = f"TTFT {options.slo.ttft_s:g} s and TPOT {options.slo.tpot_s:g} s"
    sent = f"{options.count} requests at {options.rate or 1.0:g}/s, seed {options.seed}"
    fleet = f"{options.model} on {options.gpu or 'published fits'}, {plan.name_of(design)}"
    return f"{fleet}; {options.workload}, {sent}; objectives {slo}"
