"""`python -m loadgen ab URL1 URL2`: one schedule, sent to two servers in short turns, so that
whatever the machines do meanwhile happens to both. Then the runs are compared, request by request.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from loadgen import compare, run
from loadgen.load import flags, setup, target
from loadgen.load.flag_values import UsageError
from loadgen.load.setup import Plan
from loadgen.load.sitting import Sitting
from loadgen.reports import compare_page, run_files
from loadgen.reports.run_files import RunFileError

_MOST_SLOTS: Final = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Both servers, and the flags of `run`."""
    parser.add_argument("a", help="URL of a server")
    parser.add_argument("b", help="URL of another")
    parser.add_argument("--slot-seconds", type=float, default=15.0, help="of schedule in each turn")
    flags.add(parser)


async def main(options: argparse.Namespace) -> int:
    """0 when both were loaded, whatever differs."""
    try:
        plans = _plans(options)
        parent = run.new_folder(options)
        sittings = [
            await Sitting.begin(plan, options, _sub(parent, name))
            for name, plan in zip("ab", plans, strict=True)
        ]
        await take_turns(sittings, options, options.slot_seconds)
        documents = [await sitting.finish() for sitting in sittings]
        found = compare.compared(parent / "a", parent / "b")
        page = compare_page.render(found)
        run_files.replace_file(parent / run_files.REPORT, page.encode())
    except (UsageError, RunFileError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return run.EXIT_USAGE
    except target.TargetError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return run.EXIT_UNREACHABLE
    except OSError as error:
        print(f"loadgen: results cannot be written: {error}", file=sys.stderr)
        return run.EXIT_USAGE
    print(compare.show(found))
    print(f"report          {parent}/{run_files.REPORT}")
    return max(run.exit_code(document, []) for document in documents)


def slots(workload_s: float, seconds: float) -> list[tuple[float, float]]:
    """Parts of a schedule; the last one takes what is left. Raises UsageError."""
    if not seconds > 0 or workload_s / seconds > _MOST_SLOTS:
        raise UsageError(f"--slot-seconds must be above 0, for at most {_MOST_SLOTS} turns")
    count = max(1, math.ceil(workload_s / seconds))
    edges = [number * seconds for number in range(count)] + [math.inf]
    return list(itertools.pairwise(edges))


def _plans(options: argparse.Namespace) -> list[Plan]:
    """The same for both but for the address. Raises UsageError."""
    plans = [
        setup.read(argparse.Namespace(**{**vars(options), "base_url": url}))
        for url in (options.a, options.b)
    ]
    if plans[0].pace.closed or options.ramp_up_strategy == "steps":
        raise UsageError("ab takes turns on one open schedule: no closed loop, no sweep")
    return plans


async def take_turns(
    sittings: Sequence[Sitting], options: argparse.Namespace, slot_s: float
) -> None:
    """The schedule's slots, each sent to every target before the next; who begins changes. Raises
    UsageError."""
    plan = sittings[0].plan
    roots = [r.at_s for r in setup.load(plan, options).part.workload if r.after is None]
    end_s = min(roots[-1], plan.pace.duration_s or math.inf)
    for number, slot in enumerate(slots(end_s, slot_s)):
        for sitting in sittings if number % 2 == 0 else sittings[::-1]:
            pace = replace(sitting.plan.pace, slot=slot)
            await sitting.load(replace(sitting.plan, pace=pace))
            if sitting.done.interrupted:
                return


def _sub(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder
