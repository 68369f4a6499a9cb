"""Who may import whom, and where our packages come from."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOMS, ROOT


def test_import_contracts_hold() -> None:
    command = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [str(command), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("room", ROOMS)
def test_packages_come_from_this_repository(room: str) -> None:
    """`kernels` is also the name of a package that anyone can install."""
    found = importlib.import_module(room).__file__
    assert found is not None
    assert Path(found).resolve().parent == ROOT / room
