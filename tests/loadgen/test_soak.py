"""The judgement of a soak, and a very short one on a real cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from loadgen.soak import CUTS, ROUNDS, soak
from loadgen.soak_report import Findings, Memory, resident_bytes

_MIB = 1024 * 1024


def memory(*sizes_mib: float) -> Memory:
    found = Memory()
    for second, size in enumerate(sizes_mib):
        found.add(float(second), int(size * _MIB))
    return found


def test_only_the_later_half_counts() -> None:
    filling = memory(*range(50), *([50.0] * 50))
    assert filling.slope_bytes_per_s == 0 and filling.flat
    growing = memory(*[50.0] * 50, *(50 + number for number in range(50)))
    assert growing.slope_bytes_per_s == pytest.approx(_MIB) and not growing.flat
    assert memory().flat and memory(1.0).flat


def test_what_is_not_good() -> None:
    def findings(**changed: object) -> Findings:
        fields: dict[str, object] = {"seconds": 1.0, "ends": {"finished": 3}, "broken": {}}
        fields |= {"cuts": 0, "settled_s": 0.1, "held": {}, "lost_pages": 0, "probe_ok": True}
        return Findings(**(fields | {"memory": {"a": memory(1.0)}} | changed))  # type: ignore[arg-type]

    assert findings().good
    for changed in (
        {"broken": {"status 500": 1}},
        {"held": {"decode-0": {"held_pages": 1}}},
        {"lost_pages": 1},
        {"probe_ok": False},
        {"memory": {"a": memory(*range(60))}},
    ):
        bad = findings(**changed)
        assert not bad.good and not json.loads(bad.line())["ok"]
        assert bad.table()


def test_resident_memory_of_this_process() -> None:
    assert resident_bytes(os.getpid()) > _MIB
    assert resident_bytes(2**22 + 1) == 0


@pytest.mark.process
async def test_a_short_soak(tmp_path: Path) -> None:
    findings = await soak(4.0, tmp_path / "run", seed=1)
    print(findings.table())
    assert not findings.held and not findings.lost_pages and not findings.broken
    assert findings.probe_ok and findings.cuts == ROUNDS * CUTS
    assert set(findings.ends) == {"placing", "first token", "streaming", "finished"}
