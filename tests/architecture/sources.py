"""The source files of the repository, read once and parsed."""

from __future__ import annotations

import ast
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("services", "shared", "kernels", "loadgen")


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


@functools.cache
def product() -> tuple[Source, ...]:
    """Every file of the four packages."""
    return tuple(source for room in ROOMS for source in _read(room))


@functools.cache
def suite() -> tuple[Source, ...]:
    return _read("tests")


@functools.cache
def tracked() -> tuple[str, ...]:
    """Names of all files under version control; empty in an export without it."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return tuple(name for name in done.stdout.split("\0") if name and (ROOT / name).is_file())


def _read(folder: str) -> tuple[Source, ...]:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        found.append(Source(str(path.relative_to(ROOT)), text, ast.parse(text)))
    return tuple(found)
