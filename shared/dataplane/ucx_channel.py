"""One UCX worker with one endpoint: what a single link moves its pages through.

A worker of its own makes the fence simple: on host memory bytes land only while *we* progress
that worker, so closing its endpoint and never progressing it again ends everything, and no other
link notices. Runs on the event loop's thread alone. Knows no tickets and no pages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from shared.dataplane.link_wire import Lane
from shared.dataplane.ucx_library import UcxLibrary, label, lanes
from shared.dataplane.ucx_pump import Pump
from shared.errors import Code, TransferError

_BURST: Final = 32
"""Progress calls at one go."""
_SWEEP: Final = 64
"""Unfinished operations looked at per turn: completions come nearly in order."""
_FENCE_S: Final = 1.0
_PARKED: Final[list[object]] = []
"""Workers whose operations did not end when fenced: kept alive so that UCX never touches freed
memory. Not expected on host memory."""


class Batch:
    """Operations that end together: `on_end(all of them succeeded)` is called once, on the loop,
    after `seal` and after the last of them."""

    __slots__ = ("_good", "_left", "_on_end")

    def __init__(self, on_end: Callable[[bool], None]) -> None:
        self._on_end = on_end
        self._left = 1
        self._good = True

    def joined(self) -> None:
        self._left += 1

    def seal(self) -> None:
        """No more operations will join."""
        self.left(True)

    def left(self, good: bool) -> None:
        self._left -= 1
        self._good = self._good and good
        if not self._left:
            self._on_end(self._good)


class _Operation:
    """A posted send or receive. The array keeps the pages' view alive."""

    __slots__ = ("_array", "batch", "request")

    def __init__(self, request: Any, array: Any, batch: Batch) -> None:
        self.request = request
        self._array = array
        self.batch = batch


class Channel:
    """Post operations into batches. After `fence` nothing moves any more."""

    def __init__(self, library: UcxLibrary, lane: Lane, pump: Pump) -> None:
        self._library = library
        self._pump = pump
        self._loop = asyncio.get_running_loop()
        try:
            self._worker = library.worker(lane)
        except library.error as error:
            raise TransferError("UCX cannot make a worker") from error
        self._advance: Callable[[int], int] = library.advance
        self._handle: int = self._worker.handle
        self._endpoint: Any = None
        self._operations: deque[_Operation] = deque()
        self._news = True
        """Something may have completed since the last look."""
        self._lanes: tuple[str, ...] = ()
        self.address: bytes = self._worker.address.tobytes()
        self.fenced = False
        self.unsettled = False
        """After `fence`: an operation did not end."""
        self._descriptor: int = self._worker.epoll_file_descriptor
        self._loop.add_reader(self._descriptor, pump.wake, self)
        pump.wake(self)

    def connect(self, address: bytes) -> None:
        """Make the endpoint. Raises TransferError: no transport reaches that address."""
        try:
            self._endpoint = self._library.endpoint(self._worker, address)
        except self._library.error as error:
            raise TransferError("no transport reaches the peer", Code.WORKER_LOST) from error
        self._pump.wake(self)

    def send(self, buffer: object, tag: int, batch: Batch) -> None:
        """Send from `buffer` in place, which must not change until the batch has ended."""
        endpoint, array = self._open(), self._library.array(buffer)
        try:
            request = endpoint.tag_send(array, self._library.tag(tag))
        except self._library.error as error:
            raise TransferError("the link is broken", Code.WORKER_LOST) from error
        self._pump.wake(self)
        if not (request.completed and self._succeeded(request)):  # small ones leave at once
            self._posted(request, array, batch)

    def receive(self, buffer: object, tag: int, batch: Batch) -> None:
        """Receive into `buffer` in place. A shorter message ends it too; a longer one fails it."""
        endpoint, array = self._open(), self._library.array(buffer)
        try:
            request = endpoint.tag_recv(array, self._library.tag(tag), self._library.whole_tag)
        except self._library.error as error:
            raise TransferError("the link is broken", Code.WORKER_LOST) from error
        self._posted(request, array, batch)

    @property
    def lanes(self) -> tuple[str, ...]:
        """Transports of the endpoint; true once something was moved."""
        if not self._lanes and self._endpoint is not None and not self.fenced:
            self._lanes = lanes(self._endpoint)
        return self._lanes

    @property
    def label(self) -> str:
        return label(self.lanes)

    def fence(self) -> bool:
        """Close the endpoint and end every operation, without awaiting. True: nothing lands
        or is read any more. False: an operation did not end; its pages must stay untouched."""
        if self.fenced:
            return not self.unsettled
        self.fenced = True
        self._loop.remove_reader(self._descriptor)
        self._pump.drop(self)
        self._worker.progress()
        if self._endpoint is not None:
            self._endpoint.close_blocking()
        limit_s = self._loop.time() + _FENCE_S
        while self._operations and self._loop.time() < limit_s:
            self._worker.progress_once()
            self._news = True
            self.deliver()
        if self._operations:
            self.unsettled = True
            _PARKED.append((self._worker, self._endpoint, tuple(self._operations)))
            stuck, self._operations = self._operations, deque()
            for operation in stuck:
                operation.batch.left(False)
        self._worker = self._endpoint = None
        return not self.unsettled

    # -- the pump's side ---------------------------------------------------------------------

    def advance(self) -> bool:
        if self.fenced:
            return False
        advance, handle = self._advance, self._handle
        moved = 0
        while moved < _BURST and advance(handle):
            moved += 1
        self._news = self._news or moved > 0
        return moved > 0

    def deliver(self) -> bool:
        """Report what has completed near the front of the queue. Batches may fence us."""
        if not self._news:
            return False
        self._news = False
        ended: list[_Operation] = []
        waiting: list[_Operation] = []
        while self._operations and len(waiting) < _SWEEP:
            operation = self._operations.popleft()
            (ended if operation.request.completed else waiting).append(operation)
        self._operations.extendleft(reversed(waiting))
        for operation in ended:
            operation.batch.left(self._succeeded(operation.request))
        return bool(ended)

    @property
    def expects(self) -> bool:
        return bool(self._operations)

    def sleep(self) -> bool:
        return self.fenced or bool(self._worker.arm())

    def _open(self) -> Any:
        if self.fenced or self._endpoint is None:
            raise TransferError("the link is closed", Code.WORKER_LOST)
        return self._endpoint

    def _posted(self, request: Any, array: Any, batch: Batch) -> None:
        batch.joined()
        self._operations.append(_Operation(request, array, batch))
        self._news = True
        self._pump.wake(self)

    def _succeeded(self, request: Any) -> bool:
        try:
            request.check_error()
        except self._library.error:
            return False
        return True
