"""`python -m loadgen chaos`: strike a running local cluster during a load, and say what the clients
noticed. Exit code 0 only if no stream was lost, none was wrong, nothing is held afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from loadgen import prompts
from loadgen.chaos_cluster import Cluster, read_folder
from loadgen.chaos_faults import FAULTS, Fault, carry_out, victim
from loadgen.chaos_report import Findings, Watched
from loadgen.client import ChatClient, Target, first_model
from loadgen.records import Row
from shared.errors import StartupError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
_POLL_S: Final = 0.05
_FAST_POLL_S: Final = 0.005
_PROBE: Final = "Is anybody there?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--fault", choices=sorted(FAULTS), help="what to do (see --list)")
    parser.add_argument("--run-dir", type=Path, default=Path(".baton/run"), help="of the cluster")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="its public address")
    parser.add_argument("--streams", type=int, default=20, help="sent at once")
    parser.add_argument("--input-len", type=int, default=256, help="words per prompt")
    parser.add_argument("--output-len", type=int, default=256, help="tokens of each answer")
    parser.add_argument("--at-share", type=float, default=0.2, help="of all tokens; then strike")
    parser.add_argument("--fault-seconds", type=float, default=5.0, help="of a fault that lasts")
    parser.add_argument("--recover-seconds", type=float, default=120.0, help="limit of recovery")
    parser.add_argument("--settle-seconds", type=float, default=45.0, help="lease and grace")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per request")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts; another: not cached")


async def main(options: argparse.Namespace) -> int:
    """Run it; the table and one JSON line go to stdout."""
    if options.list or not options.fault:
        for fault in FAULTS.values():
            print(f"{fault.name:<17}{fault.what}")
        return 0 if options.list else EXIT_USAGE
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            findings = await Trial(options, http).run(FAULTS[options.fault])
    except StartupError as error:
        print(f"loadgen: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    except aiohttp.ClientError as error:
        print(f"loadgen: {options.base_url} does not answer: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(findings.table())
    print(findings.line(), flush=True)
    return 0 if findings.good else EXIT_FAILED


class Trial:
    """One fault during one load, then the same load without it."""

    def __init__(self, options: argparse.Namespace, http: aiohttp.ClientSession) -> None:
        self._options = options
        self._http = http
        self._cluster = Cluster(options.run_dir, http)
        self._base_url = options.base_url.rstrip("/")
        self._texts = _texts(options)

    async def run(self, fault: Fault) -> Findings:
        """Raises StartupError: no cluster, or no process to strike."""
        names = frozenset(read_folder(self._options.run_dir))
        model = await first_model(self._http, self._base_url)
        load = Load(self._http, self._target(model), self._texts, self._options.at_share)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.send(), name="load")
            await self._until(load.begun, self._options.timeout, _FAST_POLL_S)
            struck = await victim(self._cluster, fault)
            if not struck:
                running.cancel()
                raise StartupError(f"no {fault.role} runs in {self._options.run_dir}")
            began_s = time.monotonic()
            seconds = self._options.fault_seconds
            await carry_out(fault, self._options.run_dir, struck, seconds)
            recovered = await self._recovered(names, model)
            recovered_s = time.monotonic() - began_s if recovered else None
        calm = Load(self._http, self._target(model), self._texts)
        await calm.send()
        return Findings(
            fault=fault.name,
            victim=struck,
            disturbed=load.streams,
            calm=calm.streams,
            recovered_s=recovered_s,
            leaks=await self._leaks(),
        )

    def _target(self, model: str) -> Target:
        return Target(
            base_url=self._base_url,
            model=model,
            max_tokens=self._options.output_len,
            temperature=0.0,
            ignore_eos=True,
            timeout_s=self._options.timeout,
        )

    async def _recovered(self, names: frozenset[str], model: str) -> bool:
        """Every process is ready again and a new request has been answered."""

        async def ready() -> bool:
            if not await self._cluster.all_ready(names):
                return False
            probe = Load(self._http, self._target(model), [_PROBE])
            await probe.send()
            return probe.streams[0].whole

        return await self._until(ready, self._options.recover_seconds)

    async def _leaks(self) -> dict[str, dict[str, object]]:
        """Who still holds something when lease and grace are over."""

        async def clean() -> bool:
            return not await self._cluster.leaks()

        if await self._until(clean, self._options.settle_seconds):
            return {}
        return await self._cluster.leaks()

    async def _until(
        self, true: Callable[[], Awaitable[bool]], limit_s: float, poll_s: float = _POLL_S
    ) -> bool:
        give_up_s = time.monotonic() + limit_s
        while not await true():
            if time.monotonic() > give_up_s:
                return False
            await asyncio.sleep(poll_s)
        return True


class Load:
    """All streams at once, each watched."""

    def __init__(
        self, http: aiohttp.ClientSession, target: Target, texts: Sequence[str], share: float = 0.2
    ) -> None:
        self.streams = [Watched(Row(number, 0, 0.0, "")) for number in range(len(texts))]
        self._http = http
        self._target = target
        self._texts = texts
        self._share = share

    async def send(self) -> None:
        client = ChatClient(self._http, self._target, time.monotonic())
        async with asyncio.TaskGroup() as tasks:
            for text, stream in zip(self._texts, self.streams, strict=True):
                tasks.create_task(self._one(client, text, stream), name="stream")

    async def begun(self) -> bool:
        """The wanted share of all tokens has come, as far as chunks can tell."""
        chunks = sum(stream.row.chunks for stream in self.streams)
        ended = all(stream.row.outcome != "incomplete" for stream in self.streams)
        return ended or chunks >= self._share * self._target.max_tokens * len(self.streams)

    async def _one(self, client: ChatClient, text: str, stream: Watched) -> None:
        def take(piece: str) -> None:
            stream.take(piece, time.monotonic())

        await client.chat(text, stream.row, take)


def _texts(options: argparse.Namespace) -> list[str]:
    """Prompts without a shared beginning. Raises StartupError."""
    try:
        plan = prompts.PromptPlan(options.input_len, 0, 1, options.seed)
        return [prompt.text for prompt in prompts.build(plan, options.streams)]
    except ValueError as error:
        raise StartupError(str(error)) from None
