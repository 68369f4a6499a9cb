"""Real processes: prompts give way to answers, one worker changes its role, no request notices."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any, Final

import pytest

from loadgen.bench_phase_shift import Phase, Shift, balance, clients, supervised, topology
from loadgen.client import first_model
from loadgen.records import Row
from services.local import LocalCluster

pytestmark = pytest.mark.process

SHIFT: Final = Shift(tick_s=0.25, window_s=6.0, cooldown_s=8.0)
PROMPTS: Final = Phase(2.2, 2.0, 600, 10)
ANSWERS: Final = Phase(6.0, 90.0, 40, 60)
"""More than two decode workers serve in time; ends once the change is over."""


class Client:
    """Sends requests of a phase, evenly, and keeps what became of them."""

    def __init__(self, cluster: LocalCluster, model: str, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._chance = random.Random(1)
        self._begun_s = time.monotonic()
        self._asks = clients(cluster, model, self._begun_s)
        self.rows: list[Row] = []

    async def play(self, phase: Phase, over: asyncio.Event) -> None:
        until_s = time.monotonic() + phase.seconds
        while time.monotonic() < until_s and not over.is_set():
            prompt = [self._chance.randrange(33, 127) for _ in range(phase.prompt_tokens)]
            row = Row(len(self.rows), 0, time.monotonic() - self._begun_s, "")
            self.rows.append(row)
            self._tasks.create_task(self._asks(phase).complete(prompt, row))
            await asyncio.sleep(1 / phase.rate_per_s)


async def until_flipped(cluster: LocalCluster, over: asyncio.Event) -> dict[str, Any]:
    """The planner's view once a change of a role is over."""
    while not (found := await balance(cluster)).get("flips"):  # noqa: ASYNC110 - a process
        await asyncio.sleep(0.1)
    over.set()
    return found


async def test_a_phase_shift_turns_a_prefill_worker_and_no_request_fails(tmp_path: Path) -> None:
    said: list[str] = []
    async with supervised(topology(SHIFT, "act"), said.append) as cluster:
        model, over = await first_model(cluster.http, cluster.url), asyncio.Event()
        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            client = Client(cluster, model, tasks)
            await client.play(PROMPTS, over)
            flipped = tasks.create_task(until_flipped(cluster, over))
            await client.play(ANSWERS, over)
        view = flipped.result()
        assert [flip["outcome"] for flip in view["flips"]] == ["done"], view
        (turned,) = [
            member for member in cluster.members.values() if member.name[:6] != member.role[:6]
        ]
        assert (turned.role, turned.name) == ("decode", view["flips"][0]["worker"])
        assert [row.outcome for row in client.rows] == ["ok"] * len(client.rows)
        assert f"{turned.name} serves decode from now on" in said
        log = cluster.members["scheduler-0"].child.log.read_text("utf-8")
        assert "planner.flip_ordered" in log and "planner.flip_ended" in log
        for name, held in (await cluster.accounting()).items():
            assert not any(held.get(key) for key in ("held_pages", "leases", "requests")), name
