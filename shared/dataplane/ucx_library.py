"""The only door to ucxx: lazy import, contexts with our settings, and which lanes are in use.

Error handling is on for every endpoint, also over shared memory, so that a dead peer is an error
and closing is a fence. That rules out cma: it needs error handling off, and then a peer killed in
the middle of a copy aborts *our* process. Knows no pages and no peers.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from typing import Any, Final

from shared.dataplane.link_wire import Lane
from shared.dataplane.native.library import addresses, compiled
from shared.dataplane.region import Region
from shared.dataplane.ucx_calls import Calls
from shared.dataplane.ucx_exchange import Exchange, PlainExchange
from shared.errors import StartupError

_SIOCGIFADDR: Final = 0x8915
_LABELS: Final = {
    "tcp": "tcp",
    "sysv": "shm",
    "posix": "shm",
    "cma": "shm",
    "xpmem": "shm",
    "knem": "shm",
    "self": "shm",
    "cuda_ipc": "cuda_ipc",
}
_MAX_LANES: Final = 16


class UcxLibrary:
    """One UCX context per kind of link, made when first needed."""

    def __init__(self, host: str, *, cuda: bool, shared_only: bool, plain: bool = False) -> None:
        self._devices = network_device(host)
        self._cuda = ",cuda_copy,cuda_ipc" if cuda else ""
        self._shared_only = shared_only
        self.host_only = not cuda
        """Pages are in host memory."""
        self._contexts: dict[Lane, Any] = {}
        self._spare: dict[Lane, Any] = {}
        # UCX reads these once, when its shared object is loaded.
        os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
        os.environ.setdefault("UCX_LOG_FILE", "stderr")
        try:
            from ucxx._lib import libucxx
        except ImportError as error:
            raise StartupError(f"ucxx cannot be loaded ({error}); install the lock file") from error
        self._api: Any = libucxx
        self.error: type[Exception] = libucxx.UCXError
        self.calls = Calls()
        self.compiled: Any = None if plain else compiled()
        """The C half of a link; None where it could not be built."""

    def prepare(self, lane: Lane) -> None:
        """Make the next worker of this kind ahead of need: it takes milliseconds."""
        if lane not in self._spare:
            self._spare[lane] = self._make_worker(lane)

    def worker(self, lane: Lane) -> Any:
        """A UCX worker with its wake-up descriptor. One thread only: the event loop's."""
        return self._spare.pop(lane, None) or self._make_worker(lane)

    def exchange(self, worker: Any, region: Region) -> Exchange:
        """In C where that could be compiled."""
        if self.compiled is None:
            return PlainExchange(self.calls, worker.handle, region)
        exchange: Exchange = self.compiled.Exchange(
            addresses(self.calls.library),
            worker.handle,
            region.address,
            region.page_bytes,
            region.pages,
        )
        return exchange

    def _make_worker(self, lane: Lane) -> Any:
        if lane not in self._contexts:
            self._contexts[lane] = self._api.UCXContext(self._options(lane))
        worker = self._api.UCXWorker(
            self._contexts[lane], enable_delayed_submission=False, enable_python_future=False
        )
        worker.init_blocking_progress_mode()
        return worker

    def endpoint(self, worker: Any, address: bytes) -> Any:
        """An endpoint with error handling. `address` must come from a peer that proved itself:
        UCX trusts it. Raises `self.error` when no common transport exists."""
        peer = self._api.UCXAddress.create_from_buffer(address)
        return self._api.UCXEndpoint.create_from_worker_address(worker, peer, True)

    def _options(self, lane: Lane) -> dict[str, str]:
        options = {
            "TLS": ("self,sysv" if self._shared_only else "self,sysv,tcp") + self._cuda,
            # Offers sysv to endpoints with error handling, which UCX by default does not.
            "MM_ERROR_HANDLING": "y",
            # Four times the default: fewer turns between two busy processes. Equal everywhere:
            # the sender fills the receiver's buffers.
            "SYSV_SEG_SIZE": "32768",
            # With it a peer would name an address in our memory (BR-025).
            "TCP_PUT_ENABLE": "n",
        }
        if lane is Lane.TCP:
            options["TLS"] = "self,tcp" + self._cuda
        if not self._cuda:
            # Receives are posted before they are asked for: below this size the bytes come at
            # once, without one more question and answer between two processes.
            options["RNDV_THRESH"] = "512k"
        if self._devices:
            options["NET_DEVICES"] = self._devices
        return options


def network_device(host: str) -> str:
    """The interface that carries `host`, so that UCX listens nowhere else. Empty: unknown.
    Raises ValueError for a name, or for an address that no peer could reach."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        raise ValueError("peers need one address, not all of them")
    if address.is_loopback:
        return "lo"
    if address.version != 4:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            if reply[20:24] == address.packed:
                return name
    return ""


# -- which lanes an endpoint really has (ucp_ep_query, not offered by the Python API) --------


class _Entry(ctypes.Structure):
    _fields_ = (("transport", ctypes.c_char_p), ("device", ctypes.c_char_p))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local", ctypes.c_char * 128),
        ("remote", ctypes.c_char * 128),
        ("entries", ctypes.POINTER(_Entry)),
        ("count", ctypes.c_uint),
        ("entry_bytes", ctypes.c_size_t),
        ("user", ctypes.c_void_p),
    )


def lanes(endpoint: Any) -> tuple[str, ...]:
    """Names of the transports of an endpoint, e.g. ('sysv', 'posix'). Empty: UCX will not say."""
    try:
        query = ctypes.CDLL("libucp.so.0").ucp_ep_query
    except (OSError, AttributeError):
        return ()
    entries = (_Entry * _MAX_LANES)()
    asked = _Attributes(field_mask=1 << 3, entries=entries, count=_MAX_LANES)
    asked.entry_bytes = ctypes.sizeof(_Entry)
    query.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    if query(endpoint.handle, ctypes.byref(asked)) != 0:
        return ()
    return tuple(dict.fromkeys(entries[i].transport.decode() for i in range(asked.count)))


def label(names: tuple[str, ...]) -> str:
    """One word for a set of lanes: what a metric shows."""
    found = {_LABELS.get(name, "rdma") for name in names if name != "cuda_copy"}
    for word in ("cuda_ipc", "rdma", "shm", "tcp"):
        if word in found:
            return word
    return "unknown"
