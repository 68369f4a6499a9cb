"""`python -m loadgen compare A B`: do two runs differ by more than noise?

Runs of the same schedule (same data set, seed and arrivals) are compared request by request.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.reports import compare_page, run_files, slo
from loadgen.reports.contrast import LEAST_ROWS, Contrast, contrast, same_schedule
from loadgen.reports.run_files import RunFileError
from loadgen.reports.summary import steady_window

_USAGE: Final = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("a", type=Path, help="folder of a run")
    parser.add_argument("b", type=Path, help="folder of another")
    parser.add_argument("--unpaired", action="store_true", help="though they sent different things")
    parser.add_argument("--seed", type=int, default=0, help="of the resampling")
    parser.add_argument("--html", type=Path, default=None, help="write a page too")
    parser.add_argument("--json", action="store_true", help="print it as JSON instead")


async def main(options: argparse.Namespace) -> int:
    """0 whatever differs; 2 when the runs cannot be compared."""
    try:
        found = compared(options.a, options.b, options.unpaired, options.seed)
        if options.html is not None:
            run_files.replace_file(options.html, compare_page.render(found).encode())
    except (RunFileError, slo.SloError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return _USAGE
    except OSError as error:
        print(f"loadgen: {options.html}: {error.strerror or error}", file=sys.stderr)
        return _USAGE
    print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() if options.json else show(found))
    return 0


def compared(a: Path, b: Path, unpaired: bool = False, seed: int = 0) -> dict[str, Any]:
    """Everything that can be said of both. Raises RunFileError."""
    documents = [run_files.read_run(folder) for folder in (a, b)]
    paired = not unpaired and same_schedule(documents)
    if not paired and not unpaired:
        raise RunFileError(
            f"{a} and {b} did not send the same requests at the same times; --unpaired compares "
            "them anyway, as two samples"
        )
    rows = [run_files.read_rows(folder).measured() for folder in (a, b)]
    inside = [
        part.between(*_window(document, part))
        for part, document in zip(rows, documents, strict=True)
    ]
    found = contrast(inside[0], inside[1], paired, _slos(documents), seed)
    return {
        "schema": "baton.compare/1",
        "paired": paired,
        "runs": [_told(folder, one) for folder, one in zip((a, b), documents, strict=True)],
        "figures": [one.as_told() for one in found],
        "verdict": _verdict(documents, found),
        "notes": _notes(documents),
    }


def show(found: Mapping[str, Any]) -> str:
    """For the terminal; the verdict is the last line."""
    first, second = found["runs"]
    kind = "request by request" if found["paired"] else "as two samples"
    lines = [f"A  {first['folder']}   {first['said']}", f"B  {second['folder']}   {second['said']}"]
    lines += [f"note  {note}" for note in found["notes"]]
    lines.append(f"compared {kind}; intervals of 95 % for all figures together")
    lines.append(f"{'':<14}{'A':>11}{'B':>11}{'B - A':>11}   {'interval':<22}")
    for one in found["figures"]:
        share = one["unit"] == "share"
        scale, unit = (100.0, "%") if share else (1.0, "ms")
        a, b, change = (one[name] * scale for name in ("a", "b", "change"))
        low, high = (edge * scale for edge in one["interval"])
        interval = f"{low:+.2f} to {high:+.2f} {unit}"
        lines.append(
            f"{one['figure']:<14}{a:>11.2f}{b:>11.2f}{change:>+11.2f}   {interval:<26}"
            f"{one['verdict']}"
        )
    return "\n".join([*lines, f"verdict: {found['verdict']}"])


def _window(document: Mapping[str, Any], rows: run_files.Rows) -> tuple[float, float]:
    window = document.get("windows", {}).get("steady")
    if isinstance(window, list) and len(window) == 2:
        # Rounded when it was written.
        return float(window[0]) - 1e-5, float(window[1]) + 1e-5
    return steady_window(rows, (0.0, 1.0))


def _slos(documents: Sequence[Mapping[str, Any]]) -> slo.Slos:
    """Those that both runs were judged by."""
    texts = {str(document.get("goodput", {}).get("slo", "")) for document in documents}
    return slo.read(texts.pop().split()) if len(texts) == 1 else slo.Slos()


def _told(folder: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    metrics, outcomes = document.get("metrics", {}), document.get("counts", {}).get("outcomes", {})
    counted = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    said = f"{metrics.get('requests', '?')} requests: {counted}"
    return {"folder": str(folder), "id": str(document.get("id", folder.name)), "said": said}


def _verdict(documents: Sequence[Mapping[str, Any]], found: Sequence[Contrast]) -> str:
    for name, document in zip("AB", documents, strict=True):
        if document.get("client", {}).get("limited"):
            return f"none: {name} was limited by its client, so it does not measure its server"
    if not found:
        return f"none: fewer than {LEAST_ROWS} answered requests"
    shown = [one for one in found if one.shown]
    if not shown:
        return "no difference shown"
    return "; ".join(f"{one.name}: {one.verdict}" for one in shown)


def _notes(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for name, document in zip("AB", documents, strict=True):
        found += [f"{name}: {warning}" for warning in document.get("warnings", ())]
        if document.get("interrupted"):
            found.append(f"{name} was interrupted")
    return found
