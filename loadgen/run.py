"""`python -m loadgen run`: an open-loop load on any OpenAI-compatible server, a row per request,
figures with their definitions, and a verdict whether to believe them.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from loadgen.load import conduct, flags, setup, target
from loadgen.load.flag_values import UsageError
from loadgen.load.setup import Plan
from loadgen.load.sitting import Sitting
from loadgen.reports import claims, run_files, terminal
from loadgen.reports.claims import Claim, ClaimError
from loadgen.reports.run_files import RunFileError

EXIT_UNREACHABLE: Final = 1
EXIT_USAGE: Final = 2
EXIT_CLIENT_LIMITED: Final = 3
EXIT_ASSERTION: Final = 4
EXIT_ERRORS: Final = 5
EXIT_INTERRUPTED: Final = 130
_ERROR_SHARE: Final = 0.5
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the run."""
    flags.add(parser)


async def main(options: argparse.Namespace) -> int:
    """Run the load, write rows and report, print the figures. The exit code says whether to trust
    them."""
    try:
        plan = setup.read(options)
        wanted = [claims.read(text) for text in options.claims]
        setup.load(
            replace(plan, choice=replace(plan.choice, count=min(64, plan.choice.count))), options
        )
        folder = new_folder(options)
    except (UsageError, ClaimError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"loadgen: no results can be written: {error}", file=sys.stderr)
        return EXIT_USAGE
    for name in options.ignored:
        print(f"loadgen: {name} has no effect here", file=sys.stderr)
    try:
        document = await carry_out(plan, options, folder)
    except target.TargetError as error:
        _discard(folder)
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    except (UsageError, RunFileError) as error:
        _discard(folder)
        print(f"loadgen: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(terminal.render(document))
    print(f"rows            {folder}/{run_files.ROWS}   (python -m loadgen trace TRACE_ID)")
    print(f"report          {folder}/{run_files.REPORT}")
    return exit_code(document, wanted)


async def carry_out(plan: Plan, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send, read back, judge, write. Returns what run.json says. Raises TargetError, UsageError,
    RunFileError (its rows cannot be read)."""
    sitting = await Sitting.begin(plan, options, folder)
    steps = await _steps(sitting, options)
    return await sitting.finish(steps)


async def _steps(sitting: Sitting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One load, or a sweep with a verdict for each rate; empty for one load."""
    plan, done = sitting.plan, sitting.done
    if options.ramp_up_strategy != "steps":
        await sitting.load(plan)
        return []
    steps: list[dict[str, Any]] = []
    waiting: list[float] = conduct.rates(options)
    left = options.bisect
    while waiting and not done.interrupted:
        rate = waiting.pop(0)
        choice = replace(plan.choice, rate_per_s=rate)
        step = replace(plan, rate_per_s=rate, choice=choice, arrival=plan.arrival)
        before = len(done.files)
        await sitting.load(step)
        rows = run_files.read_parts(done.files[before:]).measured()
        steps.append(conduct.judge_step(rows, rate, step))
        if not waiting and left and (between := conduct.next_rate(steps)) is not None:
            left -= 1
            waiting.append(between)
    return sorted(steps, key=lambda entry: float(entry["rate_rps"]))


def new_folder(options: argparse.Namespace) -> Path:
    """An empty one for this run. Raises OSError, UsageError."""
    name = str(options.result_filename).removesuffix(".json")
    if name and not _NAME.match(name):
        raise UsageError(f"--result-filename {name!r}: letters, digits, . _ - only")
    stem = name or time.strftime("run-%Y%m%d-%H%M%S")
    for number in range(1_000):
        folder = Path(options.result_dir) / (f"{stem}-{number}" if number else stem)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if name:
                raise UsageError(f"{folder} exists: choose another --result-filename") from None
            continue
        return folder
    raise UsageError(f"{options.result_dir} holds too many runs of this second")


def exit_code(document: dict[str, Any], wanted: list[Claim]) -> int:
    """What scripts go by."""
    outcomes = document["counts"]["outcomes"]
    judged = sum(outcomes.values()) - outcomes.get("cancelled", 0)
    failed = judged - outcomes.get("ok", 0)
    unmet = [told for claim in wanted if (told := claim.judge(document))]
    for told in unmet:
        print(f"loadgen: {told}", file=sys.stderr)
    for trouble in document["trouble"]:
        print(f"loadgen: {trouble}", file=sys.stderr)
    if document["interrupted"]:
        return EXIT_INTERRUPTED
    if judged == 0 or failed > _ERROR_SHARE * judged or document["trouble"]:
        return EXIT_ERRORS
    if document["client"]["limited"]:
        return EXIT_CLIENT_LIMITED
    return EXIT_ASSERTION if unmet else 0


def _discard(folder: Path) -> None:
    """Nothing was sent: no run. A folder with anything in it stays."""
    try:
        folder.rmdir()
    except OSError:
        return
