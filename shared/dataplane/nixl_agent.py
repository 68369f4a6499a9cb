"""The only door to NIXL: one agent, on a thread of its own that posts reads and polls them.

NIXL calls nobody back and cannot prove that a read was stopped, so a read counts as over only
when its state is terminal; a handle is never released before. Knows no pages and no tickets.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from shared.dataplane.plane import PageMemory
from shared.errors import StartupError, TransferError
from shared.ids import PageId

_MODULES: Final = ("nixl_cu13", "nixl_cu12")
_POLL_S: Final = 0.00005
_PART_S: Final = 1.0
_COMMANDS: Final = 4096
_ACTIVE: Final = "PROC"
_GOOD: Final = "DONE"
_PARKED: Final[list[object]] = []
"""Agents that were closed under reads without an end: kept, because the library may still write."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where pages are, as the library names it."""

    address: int
    device: int
    kind: str
    """'DRAM' or 'VRAM'."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`size_bytes` from the peer's address to ours."""

    local: int
    remote: int
    size_bytes: int


@dataclass(slots=True)
class _Flight:
    handle: Any
    peer: str
    on_end: Callable[[bool], None]


def load() -> Any:
    """The library's module. Raises StartupError where it is not installed."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # it logs to standard output
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise StartupError("NIXL is not installed; it is an extra: pip install nixl-cu13 (or -cu12)")


def region(memory: PageMemory) -> Region:
    """Where the first page of these begins."""
    view = memory.run(PageId(0), 1)
    described = getattr(view, "__cuda_array_interface__", None)
    if described is not None:
        device = getattr(getattr(view, "device", None), "index", None) or 0
        return Region(int(described["data"][0]), device, "VRAM")
    return Region(int(np.asarray(view).ctypes.data), 0, "DRAM")


class Mover(Protocol):
    """What links need of an agent. Used from one event loop; callbacks come on that loop."""

    region: Region
    metadata: bytes

    async def meet(self, metadata: bytes) -> str:
        """Connect to a peer; its name for `read`. `metadata` must come from a peer that proved
        itself. Raises TransferError."""
        ...

    def read(self, peer: str, pieces: Sequence[Piece], on_end: Callable[[bool], None]) -> None:
        """Read all pieces. `on_end(whether they landed)` when nothing lands any more."""
        ...

    def part(self, peer: str) -> bool:
        """Wait a moment for the reads from this peer, blocking. False: some can still land."""
        ...

    def close(self) -> None:
        """Let go of our pages; readers of them fail."""
        ...


class Agent:
    """Implements Mover."""

    def __init__(self, name: str, memory: PageMemory) -> None:
        library = load()
        self.region = region(memory)
        self._loop = asyncio.get_running_loop()
        self._flights: list[_Flight] = []
        self._partings: list[tuple[str, threading.Event]] = []
        self._commands: queue.Queue[Callable[[], None]] = queue.Queue(_COMMANDS)
        self._closing = False
        try:
            self._agent: Any = library.nixl_agent(name, library.nixl_agent_config())
            size_bytes = memory.pages * memory.page_bytes
            whole = [(self.region.address, size_bytes, self.region.device, "")]
            descriptors = self._agent.get_reg_descs(whole, self.region.kind)
            self._registered = self._agent.register_memory(descriptors)
            self.metadata: bytes = self._agent.get_agent_metadata()
        except Exception as error:
            raise StartupError(f"NIXL does not run: {error}") from error
        self._thread = threading.Thread(target=self._run, name="nixl", daemon=True)
        self._thread.start()

    async def meet(self, metadata: bytes) -> str:
        met: asyncio.Future[str] = self._loop.create_future()

        def work() -> None:
            try:
                name = self._agent.add_remote_agent(metadata)
                name = name.decode() if isinstance(name, bytes) else str(name)
                self._agent.make_connection(name)
            except Exception:  # noqa: BLE001 - whatever the library says: there is no connection
                self._tell(_settle, met, None)
            else:
                self._tell(_settle, met, name)

        self._command(work)
        return await met

    def read(self, peer: str, pieces: Sequence[Piece], on_end: Callable[[bool], None]) -> None:
        def work() -> None:
            try:
                handle = self._prepared(peer, pieces)
            except Exception:  # noqa: BLE001 - nothing was posted
                self._tell(on_end, False)
                return
            self._flights.append(_Flight(handle, peer, on_end))
            with contextlib.suppress(Exception):  # its state says what went wrong
                self._agent.transfer(handle)

        self._command(work)

    def part(self, peer: str) -> bool:
        over = threading.Event()

        self._command(lambda: self._partings.append((peer, over)))
        return over.wait(_PART_S)

    def close(self) -> None:
        """Waits for the thread."""

        def work() -> None:
            self._closing = True

        self._command(work)
        self._thread.join(_PART_S)

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            with contextlib.suppress(queue.Empty):
                self._commands.get(timeout=_POLL_S if self._flights else None)()
            self._poll()
        with contextlib.suppress(Exception):
            self._agent.deregister_memory(self._registered)
        if self._flights:
            _PARKED.append(self)
        else:
            self._agent = None

    def _prepared(self, peer: str, pieces: Sequence[Piece]) -> Any:
        local = [(piece.local, piece.size_bytes, self.region.device) for piece in pieces]
        remote = [(piece.remote, piece.size_bytes, self.region.device) for piece in pieces]
        kind = self.region.kind
        ours = self._agent.get_xfer_descs(local, kind)
        theirs = self._agent.get_xfer_descs(remote, kind)
        return self._agent.initialize_xfer("READ", ours, theirs, peer)

    def _poll(self) -> None:
        for flight in tuple(self._flights):
            state = self._state(flight.handle)
            if state != _ACTIVE:
                self._flights.remove(flight)
                with contextlib.suppress(Exception):
                    self._agent.release_xfer_handle(flight.handle)
                self._tell(flight.on_end, state == _GOOD)
        flying = {flight.peer for flight in self._flights}
        for parting in [entry for entry in self._partings if entry[0] not in flying]:
            self._partings.remove(parting)
            with contextlib.suppress(Exception):
                self._agent.remove_remote_agent(parting[0])
            parting[1].set()

    def _state(self, handle: Any) -> str:
        try:
            return str(self._agent.check_xfer_state(handle))
        except Exception:  # noqa: BLE001 - a state that is an exception: the read has failed
            return "ERR"

    def _command(self, work: Callable[[], None]) -> None:
        try:
            self._commands.put_nowait(work)
        except queue.Full as error:
            raise TransferError("too many reads wait for NIXL") from error

    def _tell(self, callback: Callable[..., None], *values: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(callback, *values)


def _settle(met: asyncio.Future[str], name: str | None) -> None:
    if met.done():
        return
    if name is None:
        met.set_exception(TransferError("NIXL does not reach the peer"))
    else:
        met.set_result(name)
