"""What runs in one client process: warm up, wait for the common start, send, tell how it goes.

Talks with its parent over a pipe: "go" and "stop" come, "ready", "tick" and "end" are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from loadgen.load import exact_loop
from loadgen.load.payloads import Prompts
from loadgen.load.plan import Asking, Pace, Share
from loadgen.load.sender import Sender
from loadgen.load.sink import RowSink
from loadgen.load.sockets import Sockets, read_url
from loadgen.load.strain import Strain
from loadgen.workloads.request import Workload

_TICK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Part:
    """A workload with its prompts."""

    workload: Workload
    prompts: Prompts


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that a client process needs."""

    load: Part
    warmup: Part | None
    asking: Asking
    pace: Pace
    share: Share
    rows: Path


def serve(pipe: Connection, order: Order) -> None:
    """The process's body; it was forked. Ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _allow_many_files()
    # Nothing that lives now will die before the process: no need to look at it again.
    gc.freeze()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        exact_loop.run(_Client(pipe, order).run())


class _Client:
    def __init__(self, pipe: Connection, order: Order) -> None:
        self._pipe = pipe
        self._order = order
        self._commands: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(maxsize=16)
        self._sender: Sender | None = None
        self._stopped = ""

    async def run(self) -> None:
        order = self._order
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._heard)
        try:
            sink = RowSink(order.rows, order.pace.steady)
        except OSError as error:
            self._pipe.send(("end", {"trouble": f"{order.rows}: {error.strerror or error}"}))
            return
        sockets = Sockets(read_url(order.asking.base_url))
        try:
            if order.warmup is not None:
                await self._warm_up(order.warmup, sockets, sink)
            self._pipe.send(("ready", None))
            command, starts = await self._commands.get()
            told: dict[str, Any] = {}
            if command == "go" and not self._stopped:
                told = await self._load(starts, sockets, sink)
        finally:
            sockets.close()
            sink.close()
            loop.remove_reader(self._pipe.fileno())
        told |= {
            "rows": sink.rows,
            "trouble": sink.trouble,
            "connections": sockets.opened,
            "gaps": (sink.gaps.counts(), sink.gaps.total),
        }
        self._pipe.send(("end", told))

    async def _warm_up(self, part: Part, sockets: Sockets, sink: RowSink) -> None:
        """The same pace and caps with other prompts; its rows are in no figure."""
        order = self._order
        share = Share(index=order.share.index, of=order.share.of, phase="warmup")
        now_s = time.monotonic()
        self._sender = Sender(
            part.workload, part.prompts, order.asking, order.pace, share, sockets, sink
        )
        await self._sender.run(now_s, now_s)

    async def _load(
        self, starts: tuple[float, float], sockets: Sockets, sink: RowSink
    ) -> dict[str, Any]:
        order, strain = self._order, Strain()
        begin_s, origin_s = starts
        sender = Sender(
            order.load.workload,
            order.load.prompts,
            order.asking,
            order.pace,
            order.share,
            sockets,
            sink,
        )
        self._sender = sender
        strain.begin()
        ticking = asyncio.get_running_loop().create_task(
            self._tick(sender, sink, strain), name="ticks"
        )
        try:
            await sender.run(begin_s, origin_s)
        finally:
            ticking.cancel()
        self._tell(sender, sink)
        strain.look()
        return {"strain": strain.end(), "sent": sender.sent, "capped": sender.capped}

    async def _tick(self, sender: Sender, sink: RowSink, strain: Strain) -> None:
        while True:
            self._tell(sender, sink)
            strain.look()
            await asyncio.sleep(_TICK_S)

    def _tell(self, sender: Sender, sink: RowSink) -> None:
        sink.flush()
        recent, sink.recent = sink.recent, []
        told = {
            "sent": sender.sent,
            "running": sender.running,
            "outcomes": dict(sink.outcomes),
            "recent": recent,
        }
        self._pipe.send(("tick", told))
        if sink.trouble:
            sender.cut("rows cannot be written")

    def _heard(self) -> None:
        for command, content in self._received():
            if command == "stop":
                self._stopped = str(content)
                if self._sender is not None:
                    self._sender.cut(self._stopped)
            self._commands.put_nowait((command, content))

    def _received(self) -> Iterator[tuple[str, Any]]:
        try:
            while self._pipe.poll():
                yield self._pipe.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            yield "stop", "the load generator's main process is gone"


def _allow_many_files() -> None:
    """One connection is one file; take what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
