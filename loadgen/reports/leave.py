"""Writes what a run leaves behind: each file whole or not at all, and a failure of one (a full
disk) loses no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.reports import page, parquet, run_files
from loadgen.reports.run_files import Rows


def rows(folder: Path, parts: Sequence[Path], trouble: list[str]) -> None:
    """One requests.csv out of the parts; where that cannot be written the parts stay, and can be
    read as they are."""
    _attempt(run_files.ROWS, lambda: run_files.merge_rows(parts, folder / run_files.ROWS), trouble)


def everything(folder: Path, document: dict[str, Any], found: Rows) -> None:
    """run.json last, so that it can tell which of the others failed."""
    trouble: list[str] = document["trouble"]
    _attempt(run_files.PARQUET, lambda: parquet.write(folder / run_files.PARQUET, found), trouble)
    _attempt(run_files.REPORT, lambda: _page(folder, document, found), trouble)
    _attempt(run_files.RUN, lambda: run_files.write_run(folder, document), trouble)


def _page(folder: Path, document: Mapping[str, Any], found: Rows) -> None:
    run_files.replace_file(folder / run_files.REPORT, page.render(document, found).encode())


def _attempt(name: str, write: Callable[[], object], trouble: list[str]) -> None:
    try:
        write()
    except OSError as error:
        trouble.append(f"{name} was not written: {error.strerror or error}; the rest was kept")
