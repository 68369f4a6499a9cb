"""One UCX worker with one endpoint: what a single link moves its pages through.

A worker of its own makes the fence simple: on host memory bytes land only while *we* progress
that worker, so closing its endpoint and never progressing it again ends everything, and no other
link notices. Runs on the event loop's thread alone. Knows no tickets and no pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from shared.dataplane.link_wire import Lane
from shared.dataplane.region import Region
from shared.dataplane.ucx_exchange import Exchange
from shared.dataplane.ucx_library import UcxLibrary, label, lanes
from shared.dataplane.ucx_pump import Pump
from shared.errors import Code, TransferError

_FENCE_S: Final = 1.0
_HOST_FENCE_S: Final = 0.02
_STILL: Final = ("shm", "tcp")
"""Lanes that move bytes of host memory in our own progress call only."""
_PARKED: Final[list[object]] = []
"""Workers whose operations did not end when fenced, as of a message of which a part had come: kept
alive, never progressed, so that UCX never touches freed memory."""


class Channel:
    """Post operations. After `fence` nothing moves any more, and no sink is told anything. `lost`
    is called when a message of ours could not leave."""

    def __init__(
        self,
        library: UcxLibrary,
        lane: Lane,
        pump: Pump,
        region: Region,
        lost: Callable[[], object],
    ) -> None:
        self._library = library
        self._lost = lost
        self._pump = pump
        self.region = region
        self._loop = asyncio.get_running_loop()
        try:
            self._worker = library.worker(lane)
        except library.error as error:
            raise TransferError("UCX cannot make a worker") from error
        self._exchange = library.exchange(self._worker, region)
        self._endpoint: Any = None
        self._open = False
        """There is an endpoint, and no fence yet."""
        self._label = ""
        self.address: bytes = self._worker.address.tobytes()
        self.fenced = False
        self.unsettled = False
        """After `fence`: an operation did not end."""
        self._descriptor: int = self._worker.epoll_file_descriptor
        self._asleep = False
        self.awake = pump.awake
        """Where we stand while we are moved."""
        pump.wake(self)

    def connect(self, address: bytes, first_tag: int = 0) -> None:
        """Make the endpoint; our asks take tags from `first_tag` on. Raises TransferError: no
        transport reaches that address."""
        try:
            self._endpoint = self._library.endpoint(self._worker, address)
        except self._library.error as error:
            raise TransferError("no transport reaches the peer", Code.WORKER_LOST) from error
        self._exchange.connect(self._endpoint.handle, first_tag)
        self._open = not self.fenced
        self._pump.wake(self)

    def posting(self) -> Exchange:
        """To post through at once. Raises TransferError where the link is closed."""
        if not self._open:
            raise TransferError("the link is closed", Code.WORKER_LOST)
        self._pump.wake(self)
        return self._exchange

    @property
    def label(self) -> str:
        """What the endpoint's transports amount to; true once something was moved."""
        if not self._label and self._endpoint is not None and not self.fenced:
            self._label = label(lanes(self._endpoint))
        return self._label or label(())

    def fence(self) -> bool:
        """Close the endpoint and end every operation, without awaiting. True: nothing lands
        or is read any more. False: an operation did not end; its pages must stay untouched."""
        if self.fenced:
            return not self.unsettled
        still = self._library.host_only and self.label in _STILL
        self.fenced, self._open = True, False
        self.awoken()
        self._pump.drop(self)
        exchange = self._exchange
        self._worker.progress()
        if self._endpoint is not None:
            self._endpoint.close_blocking()
        exchange.stop()
        limit_s = self._loop.time() + (_HOST_FENCE_S if still else _FENCE_S)
        exchange.turn(0)
        while exchange.unfinished and self._loop.time() < limit_s:
            exchange.turn(0)
        if exchange.unfinished:
            self.unsettled = not still
            _PARKED.append((self._worker, self._endpoint, exchange, self.region))
        self._worker = self._endpoint = None
        return not self.unsettled

    # -- the pump's side ---------------------------------------------------------------------

    def turn(self, patience_ns: int) -> int:
        """Sinks may fence us."""
        if self.fenced:
            return 0
        exchange = self._exchange
        told = exchange.turn(patience_ns)
        if exchange.broken and not self.fenced:
            self._lost()
        return told

    @property
    def expects(self) -> bool:
        return self._exchange.unfinished > 0

    def sleep(self) -> bool:
        if not self.fenced:
            if not self._worker.arm():
                return False
            if not self._asleep:
                self._asleep = True
                self._loop.add_reader(self._descriptor, self._pump.wake, self)
        return True

    def awoken(self) -> None:
        """Moved by the pump: its descriptor need not be watched."""
        if self._asleep:
            self._asleep = False
            self._loop.remove_reader(self._descriptor)
