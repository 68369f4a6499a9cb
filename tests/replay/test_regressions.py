"""Cases that once broke a rule. Each is complete in itself and must never break one again."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.sim.case import load
from loadgen.sim.search import run

CASES = sorted(Path(__file__).parent.glob("*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_once_broken_now_kept(path: Path) -> None:
    outcome = run(load(path.read_text("utf-8")), words=True)
    assert outcome.violation is None, outcome.story
