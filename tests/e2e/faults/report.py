"""The table of a run and its JSON line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tests.e2e.faults.elsewhere import ELSEWHERE
from tests.e2e.faults.row import Outcome

_HEAD = ("id", "what", "outcome", "s", "longest gap s", "settled s", "wrong tokens", "leaks")


def line(outcomes: Iterable[Outcome]) -> str:
    found = list(outcomes)
    return json.dumps(
        {
            "bench": "test-faults",
            "rows": len(found),
            "passed": sum(each.result == "passed" for each in found),
            "expected_failures": sum(each.result == "expected failure" for each in found),
            "failed": sum(each.result == "failed" for each in found),
            "streams": sum(each.streams for each in found),
            "lost": sum(each.lost for each in found if not each.reason),
            "wrong_tokens": sum(each.wrong_tokens for each in found),
            "leaks": sum(each.leaks for each in found if not each.reason),
            "longest_gap_s": round(max((each.longest_gap_s for each in found), default=0.0), 3),
            "seconds": round(sum(each.seconds for each in found), 1),
        }
    )


def cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.id,
        outcome.what,
        outcome.result,
        f"{outcome.seconds:.1f}",
        f"{outcome.longest_gap_s:.2f}",
        f"{outcome.settled_s:.2f}",
        f"{outcome.wrong_tokens}",
        f"{outcome.leaks}",
    )


def terminal(outcomes: Iterable[Outcome]) -> str:
    rows = [_HEAD, *(cells(each) for each in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def page(outcomes: Iterable[Outcome]) -> str:
    """The same as a page of the documentation."""
    found = list(outcomes)
    rows = [_row(_HEAD), _row(["---"] * len(_HEAD)), *(_row(cells(each)) for each in found)]
    failing = [f"- {each.id}: {each.reason}" for each in found if each.reason]
    elsewhere = [_row(("id", "what", "shown by")), _row(["---"] * 3)]
    for name, (what, file, test) in ELSEWHERE.items():
        shown = f"`{file}{'::' * bool(test)}{test}`" if file else test
        elsewhere.append(_row((name, what, shown)))
    parts = [
        "# Faults",
        "",
        "What happens when things break, measured on real processes: the weightless engine,"
        " 2 prefill and 2 decode workers, leases of 3 s. Every stream is compared token by"
        " token with an undisturbed run. *Settled* is the time from the last event of the row"
        " until no service held anything; *s* includes start and drain of the cluster; rows may"
        " stem from several runs. Remake this page with `make test-faults"
        ' ARGS="--faults-page ops/docs/faults.md"`; the rows are in `tests/e2e/faults/rows_*.py`.',
        "",
        *rows,
        "",
        "## On a cluster of your own",
        "",
        "`python -m loadgen chaos --list` names the faults that can strike a running local"
        " cluster; `python -m loadgen chaos --fault kill-decode` sends a load, strikes, and says"
        " how many streams were lost or wrong, the longest gap, the time to recovery, and what is"
        " still held. `make soak` cuts requests at random for ten minutes.",
        "",
        "## Expected failures",
        "",
        *(failing or ["None."]),
        "",
        "## Rows that processes cannot show",
        "",
        *elsewhere,
        "",
        "## Last line",
        "",
        "```json",
        line(found),
        "```",
    ]
    return "\n".join(parts) + "\n"


def write_page(path: Path, record: Path, outcomes: Iterable[Outcome]) -> None:
    """Outcomes of rows that this run left out are taken from the record of earlier ones."""
    known = json.loads(record.read_bytes()) if record.is_file() else {}
    known |= {each.id: asdict(each) for each in outcomes}
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(known), "utf-8")
    path.write_text(page(Outcome(**known[name]) for name in sorted(known)), "utf-8")


def _row(texts: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
