"""`python -m loadgen sim`: the live cores on virtual time. No GPU, no network, no waiting.

`run` plays one workload on one fleet; `goodput` searches the highest rate within objectives; `plan`
compares disaggregated and colocated fleets of a pool and says which, how, and what it hinges on;
`speed` times the simulator itself; `sweep` varies one quantity;
`calibrate` learns prices from a live run; `replay` plays a live event log again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen import sim_calibrate, sim_flags, sim_replay, sim_speed, sim_sweep
from loadgen.sim.fleet import hinges, plan
from loadgen.sim.fleet.callers import Row
from loadgen.sim.fleet.design import DesignError, Link
from loadgen.sim.fleet.figures import parse_slo, summarise
from loadgen.sim.fleet.fleet import Fleet, Progress
from loadgen.sim.fleet.goodput import Goodput, binding, goodput
from loadgen.sim.fleet.kept import kept
from loadgen.spread import spread
from loadgen.workloads.catalogue import paced_by_arrival
from loadgen.workloads.request import Workload, WorkloadError

_USAGE: Final = 2
_MOST_SEEDS: Final = 1_000
_KEPT: Final = Path("results/kept")
_PARTS: Final = (sim_speed, sim_sweep, sim_calibrate, sim_replay)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command and its parts."""
    parts = parser.add_subparsers(required=True, metavar="part")
    for name, call, text in (
        ("run", _run, "one workload on one fleet"),
        ("goodput", _goodput, "the highest rate within both objectives"),
        ("plan", _plan, "which fleet for a pool of GPUs"),
    ):
        part = _part(parts, name, text, call)
        sim_flags.add_question(part)
        if name == "plan":
            part.add_argument("--gpus", type=int, default=4, help="in the pool")
            part.add_argument("--node-gpus", type=int, default=8, help="in one host")
            part.add_argument("--stages", type=int, default=2, help="of a pipeline at most")
            part.add_argument("--kept", type=Path, default=_KEPT, help="of answers; '': none")
            part.add_argument("--no-hinges", dest="hinges", action="store_false", help="link only")
        else:
            sim_flags.add_fleet(part)
        if name == "run":
            part.add_argument("--seeds", type=int, default=1, help="runs, the first with --seed")
    for module in _PARTS:
        name, text = module.NAME, module.TEXT
        module.add_arguments(_part(parts, name, text, module.main))


def _part(
    parts: Any, name: str, text: str, call: Callable[[argparse.Namespace], object]
) -> argparse.ArgumentParser:
    form = argparse.ArgumentDefaultsHelpFormatter
    part: argparse.ArgumentParser = parts.add_parser(name, help=text, formatter_class=form)
    part.set_defaults(part=call)
    return part


async def main(options: argparse.Namespace) -> int:
    """Run it: a table, then one line of JSON. 2 where the question cannot be answered."""
    try:
        if "slo" in options:
            options.slo = parse_slo(options.slo)
        answer: int | Awaitable[int] = options.part(options)
        return answer if isinstance(answer, int) else await answer
    except (DesignError, WorkloadError, ValueError) as error:
        print(f"sim: {error}", file=sys.stderr)
        return _USAGE


def _run(options: argparse.Namespace) -> int:
    if not 1 <= options.seeds <= _MOST_SEEDS:
        raise ValueError(f"--seeds is {options.seeds}; expected 1..{_MOST_SEEDS}")
    seeds = range(options.seed, options.seed + options.seeds)
    begun_s = time.perf_counter()
    found = list(spread([partial(_once, options, seed) for seed in seeds], options.jobs))
    wall_s = time.perf_counter() - begun_s
    _bar_end()
    mean = {name: _mean([figures[name] for figures in found]) for name in found[0]}
    _table(mean, {name: [figures[name] for figures in found] for name in found[0]})
    line = {
        "bench": "sim-run",
        "fleet": plan.name_of(sim_flags.design(options)),
        "workload": options.workload,
        "seeds": options.seeds,
        **{name: _short(value) for name, value in mean.items()},
        "requests_per_minute": round(options.count * options.seeds / wall_s * 60),
    }
    print(orjson.dumps(line).decode())
    return 0


def _once(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """The figures of one seed: of arrivals, lengths and the fleet's draws."""
    own = argparse.Namespace(**vars(options) | {"seed": seed})
    workload, rows = sim_flags.workload(own, own.rate), list[Row]()
    fleet = Fleet(sim_flags.design(own), workload, seed)
    spent = fleet.run(rows.append, Progress(tell=_bar))
    figures = asdict(summarise(rows, spent, options.slo))
    return figures | {"evicted_blocks": spent.evicted, "preempted": spent.preempted}


def _mean(values: Sequence[float]) -> float:
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)


def _goodput(options: argparse.Namespace) -> int:
    design = sim_flags.design(options)
    first = sim_flags.first_rate(options)
    draw = partial(sim_flags.workload, options)
    found = goodput(design, draw, options.slo, options.share, first, options.jobs)
    _curve(found)
    line = {
        "bench": "sim-goodput",
        "fleet": plan.name_of(design),
        "goodput_per_s": round(found.rate_per_s, 3),
        "goodput_per_gpu": round(found.per_device, 3),
        "runs": len(found.curve),
        "binds": "",
    }
    if not found.rate_per_s:
        lowest = found.curve[0].rate_per_s
        line["binds"] = binding(design, draw(lowest), options.slo)
        print(f"not even {lowest:.3g} requests/s: {line['binds']}")
    print(orjson.dumps(line).decode())
    return 0


def _plan(options: argparse.Namespace) -> int:
    if options.stages < 1:
        raise ValueError(f"--stages is {options.stages}; expected at least 1")
    question = plan.Question(
        gpus=options.gpus,
        node_gpus=options.node_gpus,
        link=Link(bytes_per_s=options.link_gb * sim_flags.GIGA),
        slo=options.slo,
        draw=lambda rate: sim_flags.workload(options, rate),
        price_of=partial(sim_flags.price, options),
        most_stages=options.stages,
        search=kept(goodput, options.kept) if options.kept != Path() else goodput,
        share=options.share,
        block_tokens=options.block_tokens,
        first_per_s=sim_flags.first_rate(options),
        jobs=options.jobs,
        apart=not any(row.after is not None for row in sim_flags.workload(options, options.rate)),
    )
    found = plan.search(question, lambda text: print(text, file=sys.stderr, flush=True))
    print(f"{'fleet':<24}{'requests/s':>12}{'per GPU':>10}{'tried':>7}")
    for choice in found.choices:
        tried, per_gpu = len(choice.found.curve), choice.found.per_device
        print(f"{choice.name:<24}{choice.total_per_s:>12.2f}{per_gpu:>10.2f}{tried:>7}")
    told = _hinges(options, question, found)
    print(found.why)
    for sentence in told:
        print(sentence)
    line = {
        "bench": "sim-plan",
        "best": found.choices[0].name,
        "runner_up": found.choices[1].name,
        "goodput_per_gpu": round(found.choices[0].found.per_device, 3),
        "phases": {c.name: round(c.found.per_device, 3) for c in found.phases},
        "pairs": {c.name: round(c.found.per_device, 3) for c in found.pairs},
        "why": found.why,
        "hinges": " ".join(told),
    }
    print(orjson.dumps(line).decode())
    return 0


def _hinges(options: argparse.Namespace, question: plan.Question, found: plan.Plan) -> list[str]:
    """At which link, length of answers and burstiness the answer turns."""
    split = next((c for c in found.choices if c.design.prefills), None)
    whole = next((c for c in found.choices if not c.design.prefills), None)
    if split is None or whole is None:
        return ["There is nothing to choose between."]
    told = [_link(question, split, whole)]
    if options.hinges:
        told.append(hinges.turns(question, hinges.answers(question.draw), split, whole))
    if options.hinges and options.arrival == "poisson" and paced_by_arrival(options.workload):
        drawn = hinges.bursts(partial(_arriving, options))
        told.append(hinges.turns(question, drawn, split, whole))
    return told


def _arriving(options: argparse.Namespace, arrival: str, rate: float) -> Workload:
    return sim_flags.workload(argparse.Namespace(**vars(options) | {"arrival": arrival}), rate)


def _link(question: plan.Question, split: plan.Choice, whole: plan.Choice) -> str:
    at = plan.break_even_link(question, split.design, whole.total_per_s / split.replicas)
    if at is None:
        return f"{split.name} stays behind {whole.name} on any link."
    if at == 0.0:
        return f"{split.name} is ahead of {whole.name} on any link that was tried."
    ahead = f"{split.name} is ahead of {whole.name}"
    return f"It hinges on the link: {ahead} from {at / sim_flags.GIGA:.2f} GB/s."


def _table(mean: dict[str, float], all_seeds: dict[str, list[float]]) -> None:
    """With the lowest and highest of the seeds where they differ."""
    for name, value in mean.items():
        low, high = min(all_seeds[name]), max(all_seeds[name])
        spread_text = f"   {_short(low)} .. {_short(high)}" if high > low else ""
        print(f"{name:<18}{_short(value):>16}{spread_text}")


def _short(value: float) -> float:
    return value if isinstance(value, int) else round(value, 5)


def _curve(found: Goodput) -> None:
    print(f"{'requests/s':>12}{'attainment':>12}{'TTFT p90 s':>12}{'TPOT p90 s':>12}")
    for point in found.curve:
        figures = point.figures
        ttft = f"{figures.ttft_p90_s:.3f}" if figures else "stopped"
        tpot = f"{figures.tpot_p90_s:.4f}" if figures else "early"
        print(f"{point.rate_per_s:>12.3f}{point.attainment:>12.3f}{ttft:>12}{tpot:>12}")


def _bar(progress: Progress) -> None:
    if sys.stderr.isatty():
        text = f"\r{progress.ended}/{progress.of} requests, {progress.now_s:.0f} s of virtual time"
        print(text, end="", file=sys.stderr, flush=True)


def _bar_end() -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
