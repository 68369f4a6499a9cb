"""The least code that pulls bytes over the UCX library: a loop, no asyncio, no checks.

A reader posts a receive and asks with one small message; the owner answers with the bytes. Both
sides go on for a moment before they sleep, which is the fastest way that was found.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Final

from loadgen.handoff.pages import Bytes
from shared.dataplane.link_wire import Lane
from shared.dataplane.ucx_library import UcxLibrary

SLOTS: Final = 16
_ASK: Final = struct.Struct(">QQ")
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
        self.peer = peer
        self._poll = select.poll()
        self._poll.register(self.worker.epoll_file_descriptor, select.POLLIN)
        self._poll.register(peer, select.POLLIN | select.POLLHUP)

    def send(self, buffer: object, tag: int) -> Any:
        return self.endpoint.tag_send(self.library.array(buffer), self.library.tag(tag))

    def receive(self, buffer: object, tag: int) -> Any:
        array, mask = self.library.array(buffer), self.library.whole_tag
        return self.endpoint.tag_recv(array, self.library.tag(tag), mask)

    def turn(self, ready: Callable[[], bool]) -> bool:
        """Move until `ready`. False: the peer has left."""
        quiet_s = time.perf_counter()
        while True:
            while self.worker.progress_once():
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
        self._target = target
        self._end = _End(socket.create_connection(("127.0.0.1", port)), lane)

    def pull(self, size_bytes: int, count: int, at_once: int) -> None:
        """`count` transfers, `at_once` of them on their way. Raises ConnectionError."""
        flying: dict[int, Any] = {}
        asked = landed = 0
        while landed < count:
            while asked < count and len(flying) < at_once:
                place = next(slot for slot in range(at_once) if slot not in flying)
                flying[place] = self._ask(place, size_bytes)
                asked += 1
            if not self._end.turn(lambda: any(r.completed for r in flying.values())):
                raise ConnectionError("the owner is gone")
            for place in [slot for slot, request in flying.items() if request.completed]:
                flying.pop(place).check_error()
                landed += 1

    def close(self) -> None:
        self._end.peer.close()

    def _ask(self, place: int, size_bytes: int) -> Any:
        begin = place * size_bytes
        view = self._target[begin : begin + size_bytes]
        request = self._end.receive(view, _BYTES_TAG + place)
        self._end.send(_ASK.pack(begin, size_bytes), _ASK_TAG + place)
        return request


def serve(source: Bytes, peer: socket.socket, lane: Lane) -> None:
    """The owner's side, until the reader leaves."""
    end = _End(peer, lane)
    wants = [bytearray(_ASK.size) for _ in range(SLOTS)]
    asked = [end.receive(want, _ASK_TAG + slot) for slot, want in enumerate(wants)]
    sending: list[Any] = []
    while end.turn(lambda: any(request.completed for request in asked)):
        sending = [request for request in sending if not request.completed]
        for slot, want in enumerate(wants):
            if asked[slot].completed:
                begin, size_bytes = _ASK.unpack(want)
                asked[slot] = end.receive(want, _ASK_TAG + slot)
                sending.append(end.send(source[begin : begin + size_bytes], _BYTES_TAG + slot))


def _exactly(peer: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        piece = peer.recv(size_bytes - len(data))
        if not piece:
            raise ConnectionError("the peer is gone")
        data += piece
    return data
