"""The clusters that are compared: one decode worker that also prefills, at several token budgets,
and one prefill beside one decode worker. All run side by side; only one at a time is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from loadgen.client import Target, first_model
from loadgen.handoff.clusters import Side, note
from services.fetch import BUILT_IN
from services.local import LocalCluster, LocalSettings
from services.topology import DEFAULT, Topology
from shared.errors import StartupError

WHOLE_TOKENS: Final = 16_384
"""A budget that no prompt exceeds: the whole prompt is one step, as without chunks."""
PAGES: Final = 1_024
_OUTPUT_TOKENS: Final = 8
_DEADLINE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Setting:
    """How one side runs. `step_tokens` 0: as measured at start."""

    name: str
    step_tokens: int
    prefill: int = 0
    policy: str = "fixed"


def settings(budgets: Sequence[int]) -> list[Setting]:
    """Whole prompts, each budget, the budget chosen at start, what can be spared of the target
    between two tokens, and P/D."""
    chunked = [Setting(f"budget_{budget}", budget) for budget in budgets]
    return [
        Setting("whole", WHOLE_TOKENS),
        *chunked,
        Setting("chosen", 0),
        Setting("gap", 0, policy="gap"),
        Setting("disaggregated", 0, prefill=1),
    ]


@contextlib.asynccontextmanager
async def running(model: str, wanted: Sequence[Setting]) -> AsyncIterator[dict[str, Side]]:
    """Every side, by the name of its setting."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        clusters = {
            one.name: LocalCluster(
                LocalSettings(
                    topology=topology(one, model),
                    model_path=model,
                    run_dir=Path(folder) / one.name,
                    drain_s=10.0,
                ),
                note,
            )
            for one in wanted
        }
        try:
            await _start(clusters)
            async with aiohttp.ClientSession() as session:
                yield {name: await _side(one, session) for name, one in clusters.items()}
        finally:
            for cluster in clusters.values():
                await cluster.drain()


async def _start(clusters: Mapping[str, LocalCluster]) -> None:
    """All at once: most of it is waiting for one another's weights. Raises StartupError."""
    failed: list[StartupError] = []
    try:
        async with asyncio.TaskGroup() as starting:
            for name, cluster in clusters.items():
                starting.create_task(cluster.start(), name=f"start-{name}")
    except* StartupError as failures:
        failed.extend(error for error in failures.exceptions if isinstance(error, StartupError))
    if failed:
        raise failed[0]


def topology(setting: Setting, model: str) -> Topology:
    """One gateway, one scheduler, one decode worker, and perhaps one prefill worker; no pool."""
    engine = BUILT_IN if model == BUILT_IN else "torch"
    built = DEFAULT.with_engine(engine).with_count("prefill", setting.prefill)
    built = built.with_count("kvpool", 0)
    route = "disaggregated" if setting.prefill else "colocated"
    decode = built.group("decode").changed(
        step_tokens=setting.step_tokens, step_policy=setting.policy, kv_pages=PAGES
    )
    gateway = built.group("gateway").changed(port=0, admin_port=0, traces_port=0)
    scheduler = built.group("scheduler").changed(route=route)
    for group in (gateway, scheduler, decode):
        built = built.changed(group)
    return built


async def budgets_of(side: Side) -> dict[str, float]:
    """The budgets that a side's decode worker works with, by kind of step."""
    found: dict[str, float] = {}
    text = await side.cluster.members["decode-0"].metrics(side.cluster.http)
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("baton_step_budget_tokens{"):
            found["mixed" if '"mixed"' in name else "prompts"] = float(value)
    return found


async def _side(cluster: LocalCluster, session: aiohttp.ClientSession) -> Side:
    model = await first_model(session, cluster.url)
    target = Target(cluster.url, model, _OUTPUT_TOKENS, 0.0, True, _DEADLINE_S)
    return Side(cluster, session, target)
