"""One UCX worker with one endpoint: what a single link moves its pages through.

A worker of its own makes the fence simple: on host memory bytes land only while *we* progress
that worker, so closing its endpoint and never progressing it again ends everything, and no other
link notices. Runs on the event loop's thread alone; idle it costs nothing (UCX's wake-up
descriptor). Knows no tickets and no pages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from shared.dataplane.ucx_library import UcxLibrary, label, lanes
from shared.dataplane.ucx_wire import Lane
from shared.errors import Code, TransferError

_SLICE_S: Final = 0.002
"""Longest turn of progress before other callbacks of the loop run."""
_SWEEP: Final = 64
"""Unfinished operations looked at per turn: completions come nearly in order."""
_FENCE_S: Final = 1.0
_PARKED: Final[list[object]] = []
"""Workers whose operations did not end when fenced: kept alive so that UCX never touches freed
memory. Not expected on host memory."""


class Operation:
    """A posted send or receive. `ended` resolves to True (done) or False (failed, cancelled);
    it is never cancelled by waiting for it."""

    __slots__ = ("_array", "_request", "ended", "size_bytes")

    def __init__(self, request: Any, array: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._request = request
        self._array = array  # keeps the pages' view alive
        self.size_bytes: int = array.nbytes
        self.ended: asyncio.Future[bool] = loop.create_future()

    @property
    def completed(self) -> bool:
        return bool(self._request.completed)

    def resolve(self, failure: type[Exception]) -> None:
        try:
            self._request.check_error()
        except failure:
            self.ended.set_result(False)
        else:
            self.ended.set_result(True)


class Channel:
    """Post operations, then await their `ended`. After `fence` nothing moves any more."""

    def __init__(self, library: UcxLibrary, lane: Lane) -> None:
        self._library = library
        self._loop = asyncio.get_running_loop()
        try:
            self._worker = library.worker(lane)
        except library.error as error:
            raise TransferError("UCX cannot make a worker") from error
        self._endpoint: Any = None
        self._operations: deque[Operation] = deque()
        self._scheduled = False
        self._lanes: tuple[str, ...] = ()
        self.address: bytes = self._worker.address.tobytes()
        self.fenced = False
        self.unsettled = False
        """After `fence`: an operation did not end."""
        self._descriptor: int = self._worker.epoll_file_descriptor
        self._loop.add_reader(self._descriptor, self._progress)
        self._kick()

    def connect(self, address: bytes) -> None:
        """Make the endpoint. Raises TransferError: no transport reaches that address."""
        try:
            self._endpoint = self._library.endpoint(self._worker, address)
        except self._library.error as error:
            raise TransferError("no transport reaches the peer", Code.WORKER_LOST) from error
        self._kick()

    def send(self, buffer: object, tag: int) -> Operation:
        return self._post(buffer, tag, sending=True)

    def receive(self, buffer: object, tag: int) -> Operation:
        return self._post(buffer, tag, sending=False)

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
        self._worker.progress()
        if self._endpoint is not None:
            self._endpoint.close_blocking()
        limit_s = self._loop.time() + _FENCE_S
        while self._operations and self._loop.time() < limit_s:
            self._worker.progress_once()
            self._sweep()
        for operation in self._operations:
            operation.ended.set_result(False)
        if self._operations:
            self.unsettled = True
            _PARKED.append((self._worker, self._endpoint, tuple(self._operations)))
        self._worker = self._endpoint = None
        return not self.unsettled

    def _post(self, buffer: object, tag: int, *, sending: bool) -> Operation:
        if self.fenced or self._endpoint is None:
            raise TransferError("the link is closed", Code.WORKER_LOST)
        array = self._library.array(buffer)
        try:
            if sending:
                request = self._endpoint.tag_send(array, self._library.tag(tag))
            else:
                request = self._endpoint.tag_recv(
                    array, self._library.tag(tag), self._library.whole_tag
                )
        except self._library.error as error:
            raise TransferError("the link is broken", Code.WORKER_LOST) from error
        operation = Operation(request, array, self._loop)
        self._operations.append(operation)
        self._kick()
        return operation

    def _kick(self) -> None:
        if not self._scheduled and not self.fenced:
            self._scheduled = True
            self._loop.call_soon(self._progress)

    def _progress(self) -> None:
        """Progress until nothing moves and UCX agrees to wake us; at most one slice."""
        self._scheduled = False
        if self.fenced:
            return
        limit_s = self._loop.time() + _SLICE_S
        while self._loop.time() < limit_s:
            if self._worker.progress_once():
                continue
            self._sweep()
            if self._worker.arm():
                return
        self._sweep()
        self._kick()

    def _sweep(self) -> None:
        """Resolve what has completed near the front of the queue."""
        waiting: list[Operation] = []
        while self._operations and len(waiting) < _SWEEP:
            operation = self._operations.popleft()
            if operation.completed:
                operation.resolve(self._library.error)
            else:
                waiting.append(operation)
        self._operations.extendleft(reversed(waiting))
