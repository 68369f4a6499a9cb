"""After the rows: the table, a page if wished, and one JSON line at the very end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.faults import report
from tests.e2e.faults.row import OUTCOMES

_RECORD = Path("results/faults.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-page", default="", help="write the table of the rows to this file")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not OUTCOMES:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(report.terminal(OUTCOMES.values()))
    path = config.getoption("--faults-page", default="")
    if path:
        report.write_page(Path(path), _RECORD, OUTCOMES.values())


def pytest_unconfigure() -> None:
    if OUTCOMES:
        sys.stdout.write(report.line(OUTCOMES.values()) + "\n")
