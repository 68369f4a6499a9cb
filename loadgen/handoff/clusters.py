"""Colocated against one prefill and one decode worker: two clusters side by side, asked in turn.

Transfer figures come from the traces; the plain memory copy they are compared with runs between
the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadgen import prompts, trace
from loadgen.client import ChatClient, Target, first_model
from loadgen.handoff.figures import Measured, copy_rate, read_trace
from loadgen.records import Row
from services.fetch import BUILT_IN
from services.local import LocalCluster, LocalSettings
from services.topology import DEFAULT, Topology
from shared.errors import StartupError

TEMPLATE_TOKENS: Final = 31
"""What the chat template adds around one user message, about."""
_OUTPUT_TOKENS: Final = 8
_TRACE_WAIT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Side:
    """One running cluster and how it is asked."""

    cluster: LocalCluster
    session: aiohttp.ClientSession
    target: Target

    async def ask(self, text: str, on_text: Callable[[str], None] | None = None) -> Row:
        """One chat. Raises StartupError when it did not end well: there is nothing to measure."""
        row = Row(0, 0, time.monotonic(), trace_id="")
        await ChatClient(self.session, self.target, started=0.0).chat(text, row, on_text)
        if row.outcome != "ok" or row.ttft_s is None:
            raise StartupError(f"a request ended {row.outcome} ({row.reason})")
        return row

    async def stream(self, text: str, tokens: int, on_text: Callable[[str], None]) -> None:
        """One long chat whose pieces are reported; ends when cancelled."""
        target = replace(self.target, max_tokens=tokens)
        client = ChatClient(self.session, target, started=0.0)
        row = Row(0, 0, time.monotonic(), trace_id="")
        await client.chat(text, row, on_text)


def fresh_prompt(tokens: int, seed: int) -> str:
    """A user message of about this many tokens that no cache knows."""
    plan = prompts.PromptPlan(max(1, tokens - TEMPLATE_TOKENS), 0, 1, seed)
    return prompts.build(plan, 1)[0].text


@contextlib.asynccontextmanager
async def both_sides(model: str) -> AsyncIterator[tuple[Side, Side]]:
    """A colocated and a disaggregated cluster, both running."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        clusters = [
            LocalCluster(
                LocalSettings(
                    topology=_topology(route, prefill, model),
                    model_path=model,
                    run_dir=Path(folder) / route,
                    drain_s=10.0,
                ),
                note,
            )
            for route, prefill in (("colocated", 0), ("disaggregated", 1))
        ]
        try:
            for cluster in clusters:
                await cluster.start()
            async with aiohttp.ClientSession() as session:
                yield await _side(clusters[0], session), await _side(clusters[1], session)
        finally:
            for cluster in clusters:
                await cluster.drain()


async def measure(together: Side, split: Side, rounds: Mapping[int, int]) -> dict[int, Measured]:
    """So many rounds for each prompt length; every prompt is new to both sides, which take
    turns in being first. A short round before warms up."""
    found = {length: Measured() for length in rounds}
    for side in (together, split):
        await side.ask(fresh_prompt(min(rounds), seed=0))
    for number in range(1, max(rounds.values()) + 1):
        for length, wanted in rounds.items():
            if number > wanted:
                continue
            text = fresh_prompt(length, seed=100 * length + number)
            order = (together, split) if number % 2 else (split, together)
            rows = {id(side): await side.ask(text) for side in order}
            _take(found[length], rows[id(together)], rows[id(split)])
            read_trace(await _spans_of(split, rows[id(split)].trace_id), found[length])
            found[length].copy_gigabytes_per_s.append(copy_rate(found[length].transfer_bytes))
            note(f"round {number}/{wanted}, {length} tokens")
    return found


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _take(into: Measured, together: Row, split: Row) -> None:
    into.prompt_tokens = split.prompt_tokens or 0
    into.colocated_ttft_ms.append((together.ttft_s or 0.0) * 1000)
    into.split_ttft_ms.append((split.ttft_s or 0.0) * 1000)


async def _side(cluster: LocalCluster, session: aiohttp.ClientSession) -> Side:
    model = await first_model(session, cluster.url)
    return Side(cluster, session, Target(cluster.url, model, _OUTPUT_TOKENS, 0.0, True, 300.0))


async def _spans_of(side: Side, trace_id: str) -> list[dict[str, Any]]:
    """The trace, once its transfers have arrived in the store."""
    async with asyncio.timeout(_TRACE_WAIT_S):
        while True:
            spans = await trace.fetch(side.cluster.admin_url, trace_id)
            names = {span["name"] for span in spans}
            if {"transfer.pull", "prefill.chunk", "decode.generate"} <= names:
                return spans
            await asyncio.sleep(0.2)


def _topology(route: str, prefill: int, model: str) -> Topology:
    free = DEFAULT.group("gateway").changed(port=0, admin_port=0, traces_port=0)
    engine = BUILT_IN if model == BUILT_IN else "torch"
    topology = (
        DEFAULT.with_engine(engine)
        .changed(free)
        .with_count("prefill", prefill)
        .with_count("kvpool", 0)
    )
    return topology.changed(topology.group("scheduler").changed(route=route))
