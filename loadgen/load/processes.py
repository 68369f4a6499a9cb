"""The client processes of one load, from their start to the end of their rows.

They are forked, so that the workload is shared; they begin at one instant; Ctrl-C tells them to
stop sending and to write what they have.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final

from loadgen.load.client_process import Order, Part, serve
from loadgen.load.histogram import Histogram
from loadgen.load.plan import Asking, Pace, Share

_LEAD_S: Final = 0.15
"""From the order to begin until the first request: every process has heard it by then."""
_END_S: Final = 20.0

OnTick = Callable[[int, dict[str, Any]], None]


@dataclass(slots=True)
class Driven:
    """What came of a load. Its rows lie in `files`."""

    files: list[Path]
    begin_s: float = 0.0
    origin_s: float = 0.0
    interrupted: bool = False
    clients: list[dict[str, Any]] = field(default_factory=list)
    """Per process: strain, sent, capped, rows, connections."""
    trouble: list[str] = field(default_factory=list)
    gaps: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class _Client:
    process: ForkProcess
    pipe: Connection
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    told: dict[str, Any] | None = None


class Drive:
    """One load. `run` once."""

    def __init__(
        self,
        load: Part,
        warmup: Part | None,
        asking: Asking,
        pace: Pace,
        folder: Path,
        processes: int = 1,
        step: int = 0,
    ) -> None:
        """Rows go to `folder`/rows-STEP-N.csv."""
        if pace.cap:
            processes = min(processes, pace.cap)
        self._orders = [
            Order(
                load,
                warmup,
                asking,
                pace,
                Share(index=index, of=processes, step=step),
                folder / f"rows-{step}-{index}.csv",
            )
            for index in range(processes)
        ]
        self._clients: list[_Client] = []
        self._interrupted = False

    async def run(self, on_tick: OnTick, origin_s: float | None = None) -> Driven:
        """Until all rows are written. `origin_s`: the run's 0, where this is not its first load."""
        driven = Driven([order.rows for order in self._orders])
        loop = asyncio.get_running_loop()
        self._start(on_tick)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            for client in self._clients:
                await client.ready.wait()
            driven.begin_s = time.monotonic() + _LEAD_S
            driven.origin_s = origin_s if origin_s is not None else driven.begin_s
            self._order("go", (driven.begin_s, driven.origin_s))
            for client in self._clients:
                await client.ended.wait()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            await self._end()
        driven.interrupted = self._interrupted
        for number, client in enumerate(self._clients):
            _collect(driven, number, client)
        return driven

    def _start(self, on_tick: OnTick) -> None:
        context = multiprocessing.get_context("fork")
        loop = asyncio.get_running_loop()
        for number, order in enumerate(self._orders):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(theirs, order), name=f"loadgen-{number}", daemon=True
            )
            process.start()
            theirs.close()
            client = _Client(process, ours)
            self._clients.append(client)
            loop.add_reader(ours.fileno(), self._heard, number, client, on_tick)

    def _heard(self, number: int, client: _Client, on_tick: OnTick) -> None:
        try:
            while client.pipe.poll():
                kind, told = client.pipe.recv()
                if kind == "ready":
                    client.ready.set()
                elif kind == "tick":
                    on_tick(number, told)
                elif kind == "end":
                    client.told = told
                    self._over(client)
                    return
        except (EOFError, OSError):
            self._over(client)

    def _over(self, client: _Client) -> None:
        """Whoever waits for anything of it waits no longer."""
        asyncio.get_running_loop().remove_reader(client.pipe.fileno())
        client.ready.set()
        client.ended.set()

    def _interrupt(self) -> None:
        self._interrupted = True
        self._order("stop", "interrupted")

    def _order(self, command: str, content: object) -> None:
        for client in self._clients:
            if not client.ended.is_set():
                try:
                    client.pipe.send((command, content))
                except (BrokenPipeError, ConnectionResetError):
                    self._over(client)

    async def _end(self) -> None:
        """Every process is gone, by its own will where it has one."""
        limit_s = time.monotonic() + _END_S
        loop = asyncio.get_running_loop()
        for client in self._clients:
            loop.remove_reader(client.pipe.fileno())
            client.pipe.close()
            await asyncio.to_thread(client.process.join, max(0.0, limit_s - time.monotonic()))
            if client.process.is_alive():
                client.process.kill()
                client.process.join()


def _collect(driven: Driven, number: int, client: _Client) -> None:
    told = client.told
    if told is None:
        driven.trouble.append(
            f"client process {number} died (exit {client.process.exitcode}): its rows end there"
        )
        driven.clients.append({"process": number, "died": True})
        return
    if told.get("trouble"):
        driven.trouble.append(str(told["trouble"]))
    counts, total = told.pop("gaps", ((), 0.0))
    driven.gaps.merge(counts, total)
    driven.clients.append({"process": number, **told})
