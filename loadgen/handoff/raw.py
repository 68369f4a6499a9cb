"""The least code that pulls bytes over the UCX library: a loop, no asyncio, no checks.

A reader posts a receive and asks with one small message; the owner answers with the bytes. Both
sides go on for a moment before they sleep, which is the fastest way that was found.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from loadgen.handoff.pages import Bytes
from shared.dataplane.link_wire import Lane
from shared.dataplane.ucx_calls import PENDING, WHOLE_TAG, failed
from shared.dataplane.ucx_library import UcxLibrary

SLOTS: Final = 16
_ASK: Final = struct.Struct(">QQQ")
_ASK_TAG: Final = 100
_BYTES_TAG: Final = 200
_LINGER_S: Final = 0.0002


class _End:
    """A worker, its endpoint to the peer, and how to wait for one of its operations."""

    def __init__(self, peer: socket.socket, lane: Lane) -> None:
        self.library = UcxLibrary("127.0.0.1", cuda=False, shared_only=False)
        self.worker = self.library.worker(lane)
        mine = self.worker.address.tobytes()
        peer.sendall(struct.pack(">I", len(mine)) + mine)
        (length,) = struct.unpack(">I", _exactly(peer, 4))
        self.endpoint = self.library.endpoint(self.worker, _exactly(peer, length))
        self.calls = self.library.calls
        self.handle: int = self.worker.handle
        self.to: int = self.endpoint.handle
        self._sending: dict[int, object] = {}
        self.peer = peer
        self._poll = select.poll()
        self._poll.register(self.worker.epoll_file_descriptor, select.POLLIN)
        self._poll.register(peer, select.POLLIN | select.POLLHUP)

    def send(self, what: int | bytes, size_bytes: int, tag: int) -> None:
        request: int | None = self.calls.send(self.to, what, size_bytes, tag, self.calls.sending)
        if failed(request):
            raise ConnectionError("the link is broken")
        if request is not None:
            self._sending[request] = what

    def sent(self) -> None:
        """Let go of what has left."""
        for request in [r for r in self._sending if self.calls.check(r) != PENDING]:
            del self._sending[request]
            self.calls.free(request)

    def receive(self, where: int, size_bytes: int, tag: int) -> int:
        """`ended` tells when; nothing was asked for yet, so it never ends at once."""
        request: int | None = self.calls.receive(
            self.handle, where, size_bytes, tag, WHOLE_TAG, self.calls.receiving
        )
        if request is None or failed(request):
            raise ConnectionError("the link is broken")
        return request

    def ended(self, request: int, size_bytes: int) -> bool:
        """Whether a receive has ended, with so many bytes."""
        status = self.calls.test(request)
        if status == PENDING:
            return False
        if status or self.calls.received.size_bytes != size_bytes:
            raise ConnectionError("a transfer failed")
        self.calls.free(request)
        return True

    def turn(self, ready: Callable[[], bool]) -> bool:
        """Move until `ready`. False: the peer has left."""
        progress, handle = self.calls.progress, self.handle
        quiet_s = time.perf_counter()
        while True:
            while progress(handle):
                quiet_s = time.perf_counter()
            if ready():
                return True
            if time.perf_counter() - quiet_s > _LINGER_S and self.worker.arm():
                woken = self._poll.poll()
                if any(descriptor == self.peer.fileno() for descriptor, _ in woken):
                    return False
                quiet_s = time.perf_counter()


class RawReader:
    """The reader's side of one pair."""

    def __init__(self, target: Bytes, port: int, lane: Lane) -> None:
        self._target = int(target.ctypes.data)
        self._end = _End(socket.create_connection(("127.0.0.1", port)), lane)

    def pull(self, size_bytes: int, count: int, at_once: int) -> None:
        """`count` transfers, `at_once` of them on their way. Raises ConnectionError."""
        end, flying = self._end, dict[int, int]()
        landed: list[int] = []

        def look() -> bool:
            landed.extend(slot for slot in flying if end.ended(flying[slot], size_bytes))
            return bool(landed)

        for place in range(min(at_once, count)):
            flying[place] = self._ask(place, size_bytes)
        left = count - len(flying)
        while flying:
            if not end.turn(look):
                raise ConnectionError("the owner is gone")
            for place in landed:
                del flying[place]
                if left:
                    flying[place] = self._ask(place, size_bytes)
                    left -= 1
            landed.clear()

    def close(self) -> None:
        self._end.peer.close()

    def _ask(self, place: int, size_bytes: int) -> int:
        begin = place * size_bytes
        request = self._end.receive(self._target + begin, size_bytes, _BYTES_TAG + place)
        self._end.send(_ASK.pack(place, begin, size_bytes), _ASK.size, _ASK_TAG)
        self._end.sent()
        return request


def serve(source: Bytes, peer: socket.socket, lane: Lane) -> None:
    """The owner's side, until the reader leaves."""
    end, begin = _End(peer, lane), int(source.ctypes.data)
    wants = [(ctypes.c_char * _ASK.size)() for _ in range(SLOTS)]

    def listen(want: ctypes.Array[ctypes.c_char]) -> None:
        asked.append((end.receive(ctypes.addressof(want), _ASK.size, _ASK_TAG), want))

    def look() -> bool:
        """Asks come under one tag, so in the order of their receives."""
        return end.ended(asked[0][0], _ASK.size)

    asked = deque[tuple[int, ctypes.Array[ctypes.c_char]]]()
    for want in wants:
        listen(want)
    while end.turn(look):
        _, want = asked.popleft()
        slot, offset, size_bytes = _ASK.unpack(want.raw)
        listen(want)
        end.send(begin + offset, size_bytes, _BYTES_TAG + slot)
        end.sent()


def _exactly(peer: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        piece = peer.recv(size_bytes - len(data))
        if not piece:
            raise ConnectionError("the peer is gone")
        data += piece
    return data
