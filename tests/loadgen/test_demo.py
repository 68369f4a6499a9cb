"""The demo's verdict: it says 0 only when everything was seen to work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.demo import Shown
from loadgen.records import Row

SERVICES = ("gateway", "scheduler", "prefill", "decode", "kvpool")


def spans(moved: int = 100, services: tuple[str, ...] = SERVICES) -> list[dict[str, Any]]:
    pull = {"baton.transfer.bytes_raw": moved, "baton.transfer.transport": "ucx:shm"}
    kept: list[dict[str, Any]] = [{"name": "x", "service": name} for name in services]
    return [*kept, {"name": "transfer.pull", "service": "decode", "attributes": pull}]


def row(**changes: Any) -> Row:
    found = Row(number=0, group=0, intended_s=0.0, trace_id="t", outcome="ok", first_s=0.0512)
    found.output_tokens = 7
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_all_seen() -> None:
    shown = Shown(row=row(), spans=spans())
    assert shown.verdict() == ""
    assert json.loads(shown.line()) == {
        "bench": "demo",
        "answer_tokens": 7,
        "services_in_trace": 5,
        "spans": 6,
        "transfer_bytes": 100,
        "transport": "ucx:shm",
        "ttft_ms": 51.2,
    }


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (Shown(row=row(outcome="broken", reason="cut"), spans=spans()), "no answer: broken cut"),
        (Shown(row=row(output_tokens=0), spans=spans()), "no answer"),
        (Shown(row=row(output_tokens=None, first_s=None), spans=[]), "no answer"),
        (Shown(row=row(), spans=spans(services=SERVICES[1:])), "4 of 5 services"),
        (Shown(row=row(), spans=spans(moved=0)), "nothing was handed"),
        (Shown(row=row(), spans=spans()[:-1]), "nothing was handed"),
    ],
)
def test_what_is_missing_is_told(shown: Shown, told: str) -> None:
    assert told in shown.verdict()
    assert json.loads(shown.line())["bench"] == "demo"
