"""`make demo`: the whole system once. Starts the local cluster, streams one answer, draws its
trace, stops, and exits 0 only if all of it was seen to work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadgen import trace, waterfall
from loadgen.client import ChatClient, Target
from loadgen.records import Row
from services.fetch import BUILT_IN, resolve
from services.local import LocalCluster, LocalSettings
from services.topology import read_topology
from shared.errors import StartupError

SERVICES: Final = 5
QUESTION: Final = (
    "You are a patient teacher. In three short sentences, explain to a curious child why the sky "
    "looks blue at noon and red in the evening, and what the air has to do with it."
)
_SETTLED_S: Final = 1.5
"""Spans arrive in batches; the trace is whole when none came for this long."""
_TRACE_S: Final = 20.0
_POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the demo saw."""

    row: Row
    spans: list[dict[str, Any]]

    @property
    def services(self) -> int:
        return len({span["service"] for span in self.spans})

    def handoff(self) -> tuple[int, str]:
        """Bytes that decode pulled, and over what."""
        pulls = [
            span.get("attributes", {})
            for span in self.spans
            if span["name"] == "transfer.pull" and span["service"] == "decode"
        ]
        moved = sum(int(pull.get("baton.transfer.bytes_raw", 0)) for pull in pulls)
        names = {str(pull.get("baton.transfer.transport", "")) for pull in pulls}
        return moved, ",".join(sorted(names - {""}))

    def verdict(self) -> str:
        """Empty, or what was missing."""
        if self.row.outcome != "ok" or not self.row.output_tokens:
            return f"no answer: {self.row.outcome} {self.row.reason}"
        if self.services != SERVICES:
            return f"the trace names {self.services} of {SERVICES} services"
        return "" if self.handoff()[0] > 0 else "nothing was handed from prefill to decode"

    def line(self) -> str:
        moved, transport = self.handoff()
        first_s = self.row.ttft_s
        return json.dumps(
            {
                "bench": "demo",
                "answer_tokens": self.row.output_tokens or 0,
                "services_in_trace": self.services,
                "spans": len(self.spans),
                "transfer_bytes": moved,
                "transport": transport,
                "ttft_ms": None if first_s is None else round(first_s * 1000, 1),
            }
        )


def main() -> int:
    """0 only if everything worked; 2 when the cluster could not start."""
    options = _options()
    try:
        cluster = _cluster(options)
        shown = asyncio.run(_play(cluster, options))
    except StartupError as error:
        print(f"baton: {' '.join(error.message.split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    verdict = shown.verdict()
    if verdict:
        print(f"demo failed: {verdict}", file=sys.stderr)
    print(shown.line(), flush=True)
    return 1 if verdict else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadgen.demo", description=__doc__)
    parser.add_argument("--model", default="", help="as of python -m services")
    parser.add_argument("--topology", default="ops/topology.toml")
    parser.add_argument("--port", type=int, default=0, help="public port; 0: any free one")
    parser.add_argument("--run-dir", default=".baton/demo")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--max-tokens", type=int, default=96)
    return parser.parse_args()


def _cluster(options: argparse.Namespace) -> LocalCluster:
    topology, model = read_topology(options.topology), resolve(options.model, _say)
    if model == BUILT_IN:
        topology = topology.with_engine(BUILT_IN)
    gateway = topology.group("gateway").changed(port=options.port, admin_port=0, traces_port=0)
    settings = LocalSettings(
        topology=topology.changed(gateway),
        model_path=model,
        run_dir=Path(options.run_dir),
        restart=False,
    )
    return LocalCluster(settings, _say)


async def _play(cluster: LocalCluster, options: argparse.Namespace) -> Shown:
    await cluster.start()
    _say(f"pages          {cluster.admin_url}/   (while the demo runs; make serve keeps them)")
    try:
        row = await _ask(cluster, options)
        spans = await _whole_trace(cluster, row.trace_id)
        width = shutil.get_terminal_size((140, 24)).columns
        _say(f"\ntrace {row.trace_id}\n{waterfall.render(spans, width)}\n")
    finally:
        await cluster.drain()
    return Shown(row=row, spans=spans)


async def _ask(cluster: LocalCluster, options: argparse.Namespace) -> Row:
    async with cluster.http.get(f"{cluster.url}/v1/models") as answer:
        model = json.loads(await answer.read())["data"][0]["id"]
    _say(f"\nuser       {options.question}")
    print("assistant  ", end="", flush=True)
    target = Target(
        base_url=cluster.url,
        model=model,
        max_tokens=options.max_tokens,
        temperature=0.0,
        ignore_eos=False,
        timeout_s=120.0,
    )
    row = Row(number=0, group=0, intended_s=0.0, trace_id=secrets.token_hex(16))
    async with aiohttp.ClientSession() as session:
        client = ChatClient(session, target, time.monotonic())
        await client.chat(options.question, row, lambda text: print(text, end="", flush=True))
    _say("")
    return row


async def _whole_trace(cluster: LocalCluster, trace_id: str) -> list[dict[str, Any]]:
    """All spans, or those that came in time."""
    spans: list[dict[str, Any]] = []
    give_up_s = time.monotonic() + _TRACE_S
    changed_s = time.monotonic()
    while time.monotonic() < min(give_up_s, changed_s + _SETTLED_S) or (
        len({span["service"] for span in spans}) < SERVICES and time.monotonic() < give_up_s
    ):
        found = await trace.fetch(cluster.admin_url, trace_id)
        if len(found) != len(spans):
            spans, changed_s = found, time.monotonic()
        # The store is another process: ask again in a moment.
        await asyncio.sleep(_POLL_S)
    return spans


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
