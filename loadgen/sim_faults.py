"""`make sim-faults`: the fault search over many seeds, with what it found and what it tried.

A case that breaks a rule is made small, told as the story of its request, and written to a file
that `--replay` and the tests run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadgen.sim.case import KINDS, PLANNED, Case, dump, load
from loadgen.sim.drawing import draw
from loadgen.sim.search import Tally, cut_cases, run, run_cuts, run_seeds, shrink

_SHOWN: Final = 3
"""Broken cases that are made small and told; the others are only named."""
_BATCH: Final = 25
_CUT_BATCH: Final = 100
FOLDER: Final = Path("tests/replay")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    seeds: int
    first: int
    jobs: int
    stride: int
    folder: Path


def main(argv: Sequence[str]) -> int:
    """0 when no rule was broken and every kind of fault fired."""
    options = _parse(argv)
    if isinstance(options, Path):
        return _replay(options)
    began = time.monotonic()
    # A forked child would share the page memory of its parent's engines.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=options.jobs, mp_context=fresh) as pool:
        drawn = _gather(_submit_seeds(pool, options), options.seeds, "seeds")
        cuts = Tally() if options.stride == 0 else _search_cuts(pool, options)
    wall_s = time.monotonic() - began
    _show(drawn, cuts, wall_s)
    _tell(drawn, options)
    broken = len(drawn.broken) + len(cuts.broken)
    silent = drawn.silent() if options.seeds >= len(PLANNED) else []
    if silent:
        print(f"never fired: {', '.join(silent)}")
    calls = drawn.calls + cuts.calls
    summary = {
        "bench": "sim-faults",
        "seeds": options.seeds,
        "cut_points": cuts.runs,
        "violations": broken,
        "fault_kinds_fired": len(KINDS) - len(drawn.silent()),
        "fault_kinds": len(KINDS),
        "wall_s": round(wall_s, 1),
        "events_per_s": round(calls / wall_s),
    }
    print(json.dumps(summary))
    return 1 if broken or silent else 0


def _parse(argv: Sequence[str]) -> Options | Path:
    parser = argparse.ArgumentParser(prog="sim_faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--stride", type=int, default=1, help="of crashes at every event run each n-th; 0: none"
    )
    parser.add_argument("--replay", type=Path, help="run one written case, with its story")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where broken cases go")
    found = parser.parse_args(argv)
    if found.replay is not None:
        return Path(found.replay)
    return Options(found.seeds, found.first, max(1, found.jobs), found.stride, found.folder)


# -- the search ----------------------------------------------------------------------------------


def _submit_seeds(pool: Executor, options: Options) -> list[Future[Tally]]:
    last = options.first + options.seeds
    return [
        pool.submit(run_seeds, range(start, min(start + _BATCH, last)))
        for start in range(options.first, last, _BATCH)
    ]


def _search_cuts(pool: Executor, options: Options) -> Tally:
    """One request of each kind; each host dies before, in and after each event."""
    cases = list(cut_cases())[:: options.stride]
    futures = [
        pool.submit(run_cuts, range(start, min(start + _CUT_BATCH, len(cases))), options.stride)
        for start in range(0, len(cases), _CUT_BATCH)
    ]
    return _gather(futures, len(cases), "crashes at every event")


def _gather(futures: list[Future[Tally]], wanted: int, what: str) -> Tally:
    whole = Tally()
    told = 0
    for future in as_completed(futures):
        whole.merge(future.result())
        if whole.runs * 10 // max(1, wanted) > told or whole.runs == wanted:
            told = whole.runs * 10 // max(1, wanted)
            print(f"{what}: {whole.runs} of {wanted}, {len(whole.broken)} broken", flush=True)
    whole.broken.sort()
    return whole


# -- the report ----------------------------------------------------------------------------------


def _show(drawn: Tally, cuts: Tally, wall_s: float) -> None:
    print(f"\n{'fault':<22}{'fired':>10}{'in seeds':>10}")
    for kind in KINDS:
        print(f"{kind:<22}{drawn.fired[kind]:>10}{drawn.struck[kind]:>10}")
    print(f"\n{'ending':<30}{'seeds':>10}{'crashes':>10}")
    for ending in sorted({*drawn.endings, *cuts.endings}):
        print(f"{ending:<30}{drawn.endings[ending]:>10}{cuts.endings[ending]:>10}")
    calls = drawn.calls + cuts.calls
    print(f"\n{calls} events in {wall_s:.1f} s: {calls / wall_s:.0f} a second")
    for seed, rule in (*drawn.broken, *cuts.broken):
        print(f"broken: {rule} by case {seed}")


def _tell(tally: Tally, options: Options) -> None:
    """The smallest cases found, their stories, and how to see them again."""
    for seed, rule in tally.broken[:_SHOWN]:
        case = shrink(draw(seed), rule)
        print(f"\n=== seed {seed}, made small: {_measure(case)}")
        print(run(case, words=True).story)
        path = options.folder / f"seed_{seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump(case) + "\n")
        print(f"again: python -m loadgen.sim_faults --replay {path}")


def _measure(case: Case) -> str:
    tokens = sum(order.max_tokens for order in case.orders)
    return f"{len(case.faults)} faults, {len(case.orders)} requests, {tokens} tokens"


def _replay(path: Path) -> int:
    outcome = run(load(path.read_text()), words=True)
    print(outcome.story or "no rule is broken")
    print(f"endings: {dict(outcome.endings)}; digest {outcome.digest}")
    return 0 if outcome.violation is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
