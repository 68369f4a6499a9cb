"""`make bench-tracing`: what tracing every request costs, on real processes.

Two clusters side by side, one that makes and keeps every span and one that makes none, are loaded
in turn in short slots of one run. Compared are throughput and the processor time that all their
processes spend for a request; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from loadgen import prompts
from loadgen.client import ChatClient, Target, first_model
from loadgen.handoff.clusters import Side, note
from loadgen.records import Row
from services.fetch import BUILT_IN, resolve
from services.local import LocalCluster, LocalSettings
from services.topology import DEFAULT, Topology
from shared.errors import StartupError

BAR: Final = 0.03
_SETTLE_S: Final = 2.0
"""Spans are written behind the requests: that belongs to the slot that made them."""
_WORDS: Final = 48
_TRIES: Final = 20
_AGAIN_S: Final = 0.25


@dataclass(slots=True)
class Slots:
    """What one side did in its slots."""

    requests_per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    """Of all processes, for each request."""


async def main(options: argparse.Namespace) -> int:
    """Measure in turn, print both sides and the line of JSON."""
    model = resolve(options.model, note)
    found = {"plain": Slots(), "traced": Slots()}
    async with _both(model) as sides:
        for side in sides.values():
            await _load(side, options.tokens, options.at_once, 2 * options.at_once, seed=0)
        for number in range(options.rounds):
            order = ("plain", "traced") if number % 2 else ("traced", "plain")
            for name in order:
                await _slot(sides[name], found[name], options, seed=1 + number)
            note(f"round {number + 1}/{options.rounds}: {_shown(found)}")
        spans = await _spans(sides["traced"])
        if await _spans(sides["plain"]) or not spans:
            raise StartupError("the sides are not what they should be: nothing was measured")
    line = summary(found, options.model or "built-in", spans)
    for name, slots in found.items():
        print(f"{name:<8} {_shown({name: slots})}")
    print(orjson.dumps(line).decode())
    return 0


def summary(found: dict[str, Slots], model: str, spans: int) -> dict[str, object]:
    """Ratios of neighbouring slots: their median, least and most."""
    plain, traced = found["plain"], found["traced"]
    lost = _pairs(plain.requests_per_s, traced.requests_per_s)
    spent = _pairs(traced.cpu_ms, plain.cpu_ms)
    loss = statistics.median(lost) - 1
    return {
        "bench": "tracing",
        "model": model,
        "rounds": len(lost),
        "throughput_loss": round(loss, 4),
        "throughput_loss_least": round(min(lost) - 1, 4),
        "throughput_loss_most": round(max(lost) - 1, 4),
        "cpu_share": round(statistics.median(spent) - 1, 4),
        "cpu_share_least": round(min(spent) - 1, 4),
        "cpu_share_most": round(max(spent) - 1, 4),
        "plain_requests_per_s": round(statistics.median(plain.requests_per_s), 2),
        "traced_requests_per_s": round(statistics.median(traced.requests_per_s), 2),
        "plain_cpu_ms": round(statistics.median(plain.cpu_ms), 3),
        "traced_cpu_ms": round(statistics.median(traced.cpu_ms), 3),
        "spans_per_request": spans,
        "within_bar": loss < BAR,
    }


def _pairs(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=True)]


@contextlib.asynccontextmanager
async def _both(model: str) -> AsyncIterator[dict[str, Side]]:
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        clusters = {
            name: LocalCluster(
                LocalSettings(
                    topology=_topology(model, traced=name == "traced"),
                    model_path=model,
                    run_dir=Path(folder) / name,
                    drain_s=10.0,
                ),
                note,
            )
            for name in ("plain", "traced")
        }
        try:
            for cluster in clusters.values():
                await cluster.start()
            async with aiohttp.ClientSession() as session:
                yield {name: await _side(one, session) for name, one in clusters.items()}
        finally:
            for cluster in clusters.values():
                await cluster.drain()


def _topology(model: str, *, traced: bool) -> Topology:
    free = DEFAULT.group("gateway").changed(port=0, admin_port=0, traces_port=0, trace_share=1.0)
    topology = DEFAULT.with_engine(BUILT_IN if model == BUILT_IN else "torch").changed(free)
    if traced:
        return topology
    return replace(topology, shared=(*topology.shared, ("otlp_endpoint", "")))


async def _side(cluster: LocalCluster, session: aiohttp.ClientSession) -> Side:
    name = await first_model(session, cluster.url)
    return Side(cluster, session, Target(cluster.url, name, 1, 0.0, True, 300.0))


async def _slot(side: Side, slots: Slots, options: argparse.Namespace, seed: int) -> None:
    cpu_s, began_s = _cpu_s(side.cluster), time.monotonic()
    await _load(side, options.tokens, options.at_once, options.requests, seed)
    took_s = time.monotonic() - began_s
    await asyncio.sleep(_SETTLE_S)
    slots.requests_per_s.append(options.requests / took_s)
    slots.cpu_ms.append((_cpu_s(side.cluster) - cpu_s) / options.requests * 1e3)


async def _load(side: Side, tokens: int, at_once: int, requests: int, seed: int) -> None:
    """So many chats, so many of them at once. Raises StartupError when one does not end well."""
    texts = [one.text for one in prompts.build(prompts.PromptPlan(_WORDS, 0, 1, seed), requests)]
    client = ChatClient(side.session, replace(side.target, max_tokens=tokens), started=0.0)

    async def work() -> None:
        while texts:
            await _ask(client, texts.pop())

    await asyncio.gather(*(work() for _ in range(at_once)))


async def _ask(client: ChatClient, text: str) -> None:
    """One answer. Who is refused for a moment asks again: the slot is longer for it."""
    for _ in range(_TRIES):
        row = Row(0, 0, time.monotonic(), trace_id="")
        await client.chat(text, row)
        if row.outcome == "ok":
            return
        if row.outcome != "refused":
            break
        await asyncio.sleep(_AGAIN_S)
    raise StartupError(f"a request ended {row.outcome} ({row.reason})")


def _cpu_s(cluster: LocalCluster) -> float:
    """Time on a processor of all threads of the cluster's processes so far. The scheduler counts
    it exactly; clock ticks would be wrong by as much as tracing costs."""
    found_ns = 0
    for member in cluster.members.values():
        for told in Path(f"/proc/{member.child.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                found_ns += int(told.read_text().split()[0])
    return found_ns / 1e9


async def _spans(side: Side) -> int:
    """Of the latest whole trace: how many spans a request makes."""
    url = f"{side.cluster.admin_url}/admin/traces?status=finished&limit=20"
    async with side.session.get(url) as answer:
        listed = orjson.loads(await answer.read()).get("traces", [])
    return int(statistics.median(trace["spans"] for trace in listed)) if listed else 0


def _shown(found: dict[str, Slots]) -> str:
    return "; ".join(
        f"{name} {statistics.median(slots.requests_per_s):.2f} requests/s, "
        f"{statistics.median(slots.cpu_ms):.2f} ms CPU each"
        for name, slots in found.items()
    )


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_tracing", description=__doc__)
    parser.add_argument("--model", default="", help="GGUF file, folder, or hashchain")
    parser.add_argument("--rounds", type=int, default=9, help="slots of each side")
    parser.add_argument("--requests", type=int, default=48, help="of a slot")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--quick", action="store_true", help="see that it runs; figures say little")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.requests = 2, 8
    return options


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(parse(sys.argv[1:]))))
    except StartupError as error:
        print(f"bench_tracing: {error.message}", file=sys.stderr)
        sys.exit(2)
