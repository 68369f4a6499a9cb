"""The calls of libucp that every page takes, straight from the C library.

`ucxx` makes three objects and takes a lock for each operation, which costs three times as much,
and it tells neither how long a message was nor under which tag it came. It also lets other threads
have the GIL at each call and then waits for it, 5 ms where one of them computes in Python; these
calls keep it. One thread only. Knows no pages and no peers.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

PENDING: Final = 1
"""The status of an operation that has not ended; 0: it ended well."""
WHOLE_TAG: Final = (1 << 64) - 1
_FIRST_ERROR: Final = (1 << 64) - 100
"""Pointers from here on are error codes."""
_RECEIVE_INFO: Final = 1 << 7


class _Parameters(ctypes.Structure):
    """ucp_request_param_t."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("request", ctypes.c_void_p),
        ("callback", ctypes.c_void_p),
        ("datatype", ctypes.c_uint64),
        ("user", ctypes.c_void_p),
        ("reply_buffer", ctypes.c_void_p),
        ("memory_type", ctypes.c_int),
        ("received", ctypes.c_void_p),
        ("registration", ctypes.c_void_p),
    )


class Received(ctypes.Structure):
    """ucp_tag_recv_info_t: what came, and under which tag."""

    _fields_ = (("tag", ctypes.c_uint64), ("size_bytes", ctypes.c_size_t))


class Calls:
    """Bound functions. An operation is a number; None: it has ended at once."""

    def __init__(self) -> None:
        self.library = library = ctypes.PyDLL("libucp.so.0")
        pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
        self.received = Received()
        """What the last `test`, or a `receive` that ended at once, found."""
        self._into = ctypes.addressof(self.received)
        # Both are read by the library at each call, so they live as long as this object.
        self._sending = _Parameters()
        self._receiving = _Parameters(mask=_RECEIVE_INFO, received=self._into)
        self.sending, self.receiving = map(ctypes.addressof, (self._sending, self._receiving))

        def bound(name: str, result: Any, *arguments: Any) -> Any:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            return function

        self.progress = bound("ucp_worker_progress", ctypes.c_uint, pointer)
        """(worker) -> 0 when nothing could be moved."""
        self.send = bound("ucp_tag_send_nbx", pointer, pointer, pointer, size, word, pointer)
        """(endpoint, address or bytes, size, tag, `sending`) -> operation."""
        self.receive = bound(
            "ucp_tag_recv_nbx", pointer, pointer, pointer, size, word, word, pointer
        )
        """(worker, address, size, tag, mask, `receiving`) -> operation."""
        self.check = bound("ucp_request_check_status", ctypes.c_int, pointer)
        """(operation) -> status, of a send."""
        self._test = bound("ucp_tag_recv_request_test", ctypes.c_int, pointer, pointer)
        self.free = bound("ucp_request_free", None, pointer)
        self.cancel = bound("ucp_request_cancel", None, pointer, pointer)
        """(worker, operation): it still ends by itself."""

    def test(self, operation: int) -> int:
        """The status of a receive; `received` tells the rest."""
        status: int = self._test(operation, self._into)
        return status


def failed(operation: int | None) -> bool:
    """Whether posting it was refused."""
    return operation is not None and operation >= _FIRST_ERROR
