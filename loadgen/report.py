"""`python -m loadgen report DIR`: judge a run's rows again, perhaps by other objectives or in
another window, and write its page anew. Works on what an unfinished run left, too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from loadgen.load import flag_values
from loadgen.load.histogram import from_told
from loadgen.reports import leave, run_files, slo, terminal
from loadgen.reports.run_files import RunFileError
from loadgen.reports.summary import Facts, summarise

_USAGE: Final = 2
_UNWRITTEN: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("folder", type=Path, help="what `loadgen run` wrote")
    parser.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="as of run")
    parser.add_argument("--steady-window", default="", metavar="A:B", help="as of run")


async def main(options: argparse.Namespace) -> int:
    """0 when the page was written."""
    try:
        document, rows = again(options.folder, options.goodput, options.steady_window)
    except (RunFileError, slo.SloError, flag_values.UsageError, ValueError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return _USAGE
    leave.everything(options.folder, document, rows)
    print(terminal.render(document))
    for trouble in document["trouble"]:
        print(f"loadgen: {trouble}", file=sys.stderr)
    return _UNWRITTEN if document["trouble"] else 0


def again(folder: Path, goodput: list[str], steady: str) -> tuple[dict[str, Any], run_files.Rows]:
    """The run's document with its figures made anew. Raises RunFileError, SloError, UsageError."""
    rows = run_files.read_rows(folder)
    known = run_files.read_run(folder) if (folder / run_files.RUN).exists() else _unknown(folder)
    trouble: list[str] = []
    if not (folder / run_files.ROWS).exists():
        leave.rows(folder, sorted(folder.glob("rows-*.csv")), trouble)
    gaps = known.get("gaps")
    told = known.get("client", {})
    facts = Facts(
        slos=slo.read(goodput or str(known.get("goodput", {}).get("slo", "")).split()),
        gpus=int(known.get("goodput", {}).get("gpus") or 0),
        steady=flag_values.steady(steady) if steady else (0.0, 1.0),
        closed=bool(known.get("arrival", {}).get("closed")),
        sweep=bool(known.get("steps")),
        ideal_hit=known.get("reuse", {}).get("ideal"),
        gaps=from_told(gaps) if isinstance(gaps, dict) else None,
        clients=[one for one in told.get("processes", ()) if isinstance(one, dict)],
    )
    return {**known, **summarise(rows, facts), "trouble": trouble}, rows


def _unknown(folder: Path) -> dict[str, Any]:
    """What an unfinished run says of itself: nothing."""
    return {
        "schema": run_files.SCHEMA,
        "id": folder.resolve().name,
        "source": "live",
        "environment": {},
        "command": {},
        "schedule_digest": "",
        "dataset": {"name": "unknown"},
        "arrival": {"name": "unknown", "closed": False},
        "target": {},
        "interrupted": True,
    }
