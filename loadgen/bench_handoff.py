"""`make bench-handoff`: colocated against 1 prefill + 1 decode, on the real model, in one run.

Two local clusters stand side by side and answer the same prompts in turn. Transfer figures come
from the traces; the plain memory copy they are compared with runs between the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np
import orjson

from loadgen import prompts, trace
from loadgen.client import ChatClient, Target, first_model
from loadgen.records import Row
from services.fetch import resolve
from services.local import LocalCluster, LocalSettings
from services.topology import DEFAULT, Topology
from shared.errors import StartupError

TEMPLATE_TOKENS: Final = 31
"""What the chat template adds around one user message, about."""
_OUTPUT_TOKENS: Final = 8
_TRACE_WAIT_S: Final = 15.0

Interval = tuple[int, int]


@dataclass(slots=True)
class Measured:
    """All rounds of one prompt length."""

    prompt_tokens: int = 0
    colocated_ttft_ms: list[float] = field(default_factory=list)
    split_ttft_ms: list[float] = field(default_factory=list)
    transfer_ms: list[float] = field(default_factory=list)
    hidden_share: list[float] = field(default_factory=list)
    gigabytes_per_s: list[float] = field(default_factory=list)
    copy_gigabytes_per_s: list[float] = field(default_factory=list)
    transfer_bytes: int = 0
    transport: str = ""

    def figures(self) -> dict[str, object]:
        """Medians, and the spread of the ratio that matters."""
        ratios = [
            split / together
            for split, together in zip(self.split_ttft_ms, self.colocated_ttft_ms, strict=True)
        ]
        return {
            "prompt_tokens": self.prompt_tokens,
            "ttft_colocated_ms": _median(self.colocated_ttft_ms),
            "ttft_1p1d_ms": _median(self.split_ttft_ms),
            "ttft_ratio": _median(ratios),
            "ttft_ratio_min": round(min(ratios), 3),
            "ttft_ratio_max": round(max(ratios), 3),
            "transfer_bytes": self.transfer_bytes,
            "transfer_ms": _median(self.transfer_ms),
            "hidden_share": _median(self.hidden_share),
            "transfer_gb_per_s": _median(self.gigabytes_per_s),
            "copy_gb_per_s": _median(self.copy_gigabytes_per_s),
        }


def covered_ns(intervals: Sequence[Interval]) -> int:
    """Length of the union."""
    total, end = 0, 0
    for begin, finish in sorted(intervals):
        total += max(0, finish - max(begin, end))
        end = max(end, finish)
    return total


def hidden_ns(transfers: Sequence[Interval], compute: Sequence[Interval]) -> int:
    """How much of the transfers lay inside the span from the first to the last compute instant."""
    begin, end = min(c[0] for c in compute), max(c[1] for c in compute)
    inside = [(max(t[0], begin), min(t[1], end)) for t in transfers]
    return covered_ns([(a, b) for a, b in inside if b > a])


def read_trace(spans: Sequence[Mapping[str, Any]], into: Measured) -> None:
    """Take transfer and prefill figures of one disaggregated request from its spans."""
    pulls = [span for span in spans if span["name"] == "transfer.pull"]
    transfers = [(span["start_ns"], span["end_ns"]) for span in pulls]
    chunks = [(s["start_ns"], s["end_ns"]) for s in spans if s["name"] == "prefill.chunk"]
    moved = sum(int(span["attributes"]["baton.transfer.bytes_raw"]) for span in pulls)
    busy_ns = covered_ns(transfers)
    into.transfer_bytes = moved
    into.transfer_ms.append(busy_ns / 1e6)
    into.hidden_share.append(hidden_ns(transfers, chunks) / busy_ns)
    into.gigabytes_per_s.append(moved / busy_ns)
    into.transport = str(pulls[0]["attributes"]["baton.transfer.transport"])


def copy_rate(size_bytes: int) -> float:
    """GB/s of one plain copy between two touched host buffers."""
    source = np.ones(size_bytes, dtype=np.uint8)
    target = np.zeros(size_bytes, dtype=np.uint8)
    begun_s = time.perf_counter()
    np.copyto(target, source)
    return size_bytes / (time.perf_counter() - begun_s) / 1e9


@dataclass(frozen=True, slots=True)
class Side:
    """One running cluster and how it is asked."""

    cluster: LocalCluster
    client: ChatClient

    async def ask(self, text: str) -> Row:
        """One chat. Raises StartupError when it did not end well: there is nothing to measure."""
        row = Row(0, 0, time.monotonic(), trace_id="")
        await self.client.chat(text, row)
        if row.outcome != "ok" or row.ttft_s is None:
            raise StartupError(f"a request ended {row.outcome} ({row.reason})")
        return row


async def spans_of(side: Side, trace_id: str) -> list[dict[str, Any]]:
    """The trace, once its transfers have arrived in the store."""
    async with asyncio.timeout(_TRACE_WAIT_S):
        while True:
            spans = await trace.fetch(side.cluster.admin_url, trace_id)
            names = {span["name"] for span in spans}
            if {"transfer.pull", "prefill.chunk", "decode.generate"} <= names:
                return spans
            await asyncio.sleep(0.2)


async def measure(
    together: Side, split: Side, lengths: Sequence[int], rounds: int
) -> dict[int, Measured]:
    """Alternate the two sides; every prompt is new to both. The first round warms up."""
    found = {length: Measured() for length in lengths}
    for number in range(rounds + 1):
        for length in lengths:
            plan = prompts.PromptPlan(length - TEMPLATE_TOKENS, 0, 1, seed=7 + number)
            (prompt,) = prompts.build(plan, 1)
            first, second = (together, split) if number % 2 else (split, together)
            rows = {id(side): await side.ask(prompt.text) for side in (first, second)}
            if number == 0:
                continue
            _take(found[length], rows[id(together)], rows[id(split)])
            read_trace(await spans_of(split, rows[id(split)].trace_id), found[length])
            found[length].copy_gigabytes_per_s.append(copy_rate(found[length].transfer_bytes))
            print(f"round {number}/{rounds}, {length} tokens", file=sys.stderr, flush=True)
    return found


def _take(into: Measured, together: Row, split: Row) -> None:
    into.prompt_tokens = split.prompt_tokens or 0
    into.colocated_ttft_ms.append((together.ttft_s or 0.0) * 1000)
    into.split_ttft_ms.append((split.ttft_s or 0.0) * 1000)


def _topology(route: str, prefill: int) -> Topology:
    free = DEFAULT.group("gateway").changed(port=0, admin_port=0, traces_port=0)
    topology = DEFAULT.changed(free).with_count("prefill", prefill).with_count("kvpool", 0)
    return topology.changed(topology.group("scheduler").changed(route=route))


async def main(options: argparse.Namespace) -> int:
    """Start both clusters, measure, print the table and the line of JSON."""
    model = resolve(options.model, lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        clusters = [
            LocalCluster(
                LocalSettings(
                    topology=_topology(route, prefill),
                    model_path=model,
                    run_dir=Path(folder) / route,
                    drain_s=10.0,
                ),
                lambda line: print(line, file=sys.stderr),
            )
            for route, prefill in (("colocated", 0), ("disaggregated", 1))
        ]
        try:
            for cluster in clusters:
                await cluster.start()
            found = await _measure_all(clusters, options)
        finally:
            for cluster in clusters:
                await cluster.drain()
    _print(found)
    return 0


async def _measure_all(
    clusters: Sequence[LocalCluster], options: argparse.Namespace
) -> dict[int, Measured]:
    async with aiohttp.ClientSession() as session:
        sides = []
        for cluster in clusters:
            model = await first_model(session, cluster.url)
            target = Target(cluster.url, model, _OUTPUT_TOKENS, 0.0, True, 300.0)
            sides.append(Side(cluster, ChatClient(session, target, started=0.0)))
        return await measure(sides[0], sides[1], options.lengths, options.rounds)


def _print(found: Mapping[int, Measured]) -> None:
    table = {str(length): measured.figures() for length, measured in found.items()}
    names = next(iter(table.values())).keys()
    for name in names:
        print(f"{name:<20}" + "".join(f"{row[name]!s:>14}" for row in table.values()))
    longest = found[max(found)]
    line = {
        "bench": "handoff",
        "transport": longest.transport,
        "rounds": len(longest.transfer_ms),
        "lengths": table,
    }
    print(orjson.dumps(line).decode())


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench_handoff", description=__doc__)
    parser.add_argument("--model", default="", help="GGUF file or Hugging Face folder")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one warm-up")
    sys.exit(asyncio.run(main(parser.parse_args())))
