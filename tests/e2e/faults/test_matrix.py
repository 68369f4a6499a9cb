"""The fault matrix on real processes (`make test-faults`): each row is a list of events, and the
last check is always the same. Tokens are compared with an undisturbed run of the weightless engine.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.faults.row import OUTCOMES, Outcome, Row
from tests.e2e.faults.rows_bus import MESSAGES, OUTAGES, POOL
from tests.e2e.faults.rows_clients import CLIENTS, SCHEDULERS
from tests.e2e.faults.rows_workers import DECODE, PREFILL
from tests.e2e.faults.stage import COLLECTOR, Stage, running_stage
from tests.e2e.traces import until_whole

pytestmark = [pytest.mark.process, pytest.mark.faults]

_LIMIT_S: Final = 200.0

ROWS: Final = sorted(
    (*CLIENTS, *SCHEDULERS, *PREFILL, *DECODE, *MESSAGES, *POOL, *OUTAGES), key=lambda row: row.id
)


def parameters() -> list[object]:
    """One per row; rows of the same id are numbered."""
    found: list[object] = []
    seen: dict[str, int] = {}
    for row in ROWS:
        seen[row.id] = seen.get(row.id, 0) + 1
        name = row.id + "abcdef"[seen[row.id] - 1] if _several(row.id) else row.id
        marks = [pytest.mark.xfail(strict=True, reason=row.fails)] if row.fails else []
        found.append(pytest.param(name, row, id=name, marks=marks))
    return found


def _several(number: str) -> bool:
    return sum(row.id == number for row in ROWS) > 1


async def play(row: Row, stage: Stage) -> None:
    for event in row.events:
        print(f"{time.monotonic():10.2f}  {event.says}")
        await event.act(stage)


def judge(row: Row, stage: Stage, outcome: Outcome) -> list[str]:
    """Fill in what the streams show. Those that ended otherwise than the row allows."""
    streams = stage.streams
    lost = [stream.describe() for stream in streams if not row.allows(stream)]
    outcome.streams, outcome.lost = len(streams), len(lost)
    outcome.longest_gap_s = max((stream.longest_gap_s for stream in streams), default=0.0)
    outcome.wrong_tokens = sum(stream.wrong_tokens for stream in streams)
    outcome.leaks, outcome.settled_s = len(stage.leaked), stage.settled_s
    return lost


async def run(row: Row, folder: Path, outcome: Outcome) -> None:
    async with running_stage(folder, row.wish, row.proxied) as stage:
        try:
            await play(row, stage)
            await stage.all_ended()
            await stage.last_check(row.probe_code)
            await _check_traces(row, stage)
        finally:
            for stream in stage.streams:
                if stream.running:
                    await stream.hang_up()
                print(stream.describe())
            lost = judge(row, stage, outcome)
        assert not outcome.wrong_tokens, f"{outcome.wrong_tokens} wrong tokens"
        assert not lost, lost


async def _check_traces(row: Row, stage: Stage) -> None:
    """Of all that came through, unless the fault took the store's spans away."""
    killed = stage.cluster.killed
    if "gateway-0" in killed or COLLECTOR in row.proxied:
        return
    whole = {stream.request_id for stream in stage.streams if stream.complete}
    await until_whole(stage.cluster, whole - {""}, killed)


@pytest.mark.parametrize(("name", "row"), parameters())
async def test_row(name: str, row: Row, tmp_path: Path) -> None:
    outcome = OUTCOMES[name] = Outcome(id=name, what=row.what, reason=row.fails)
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(_LIMIT_S):
            await run(row, tmp_path, outcome)
        outcome.result = "passed"
    finally:
        outcome.seconds = time.monotonic() - began_s
        if outcome.result == "failed" and row.fails:
            outcome.result = "expected failure"
        print(outcome)
