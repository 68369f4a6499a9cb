"""Scripted servers in a process of their own, and runs of the real command against them."""

from __future__ import annotations

import argparse
import contextlib
import csv
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadgen import __main__ as command_line
from loadgen.load import exact_loop
from tests.architecture.sources import ROOT

Serve = Callable[..., str]
Run = Callable[..., int]


@pytest.fixture
def scripted() -> Iterator[Serve]:
    """Start one with flags; its URL."""
    started: list[subprocess.Popen[str]] = []

    def serve(*flags: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.load.scripted", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        started.append(process)
        if process.stdout is None:
            raise AssertionError("no pipe")
        return process.stdout.readline().split()[-1]

    yield serve
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def parsed(*flags: str) -> argparse.Namespace:
    """As the command line reads them."""
    return command_line.parser().parse_args(flags)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`python -m loadgen run` in this process; its exit code. Results lie in tmp_path/run."""

    def call(url: str, *flags: str) -> int:
        fixed = ("--base-url", url, "--result-dir", str(tmp_path), "--result-filename", "run")
        options = parsed("run", *fixed, "--admin-url", "", "--quiet", *flags)
        return int(exact_loop.run(options.call(options)))

    return call


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Of requests.csv."""
    with contextlib.closing((folder / "requests.csv").open(encoding="utf-8")) as file:
        return list(csv.DictReader(file))
