"""TCP ports for servers that are started a moment later, by another process.

The kernel's own choice (port 0) lies in the ephemeral range: until the server binds it, any
outgoing connection may take it, and a client that keeps dialling a stopped server there may
connect to itself. So these ports lie below that range, and each process looks from a place of its
own, so that two of them at once do not choose alike.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path
from typing import Final

from shared.errors import StartupError

_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL: Final = 32_768
_LOWEST: Final = 10_000
_APART: Final = 7_919
"""From one process number to the next: a prime, more ports than any process asks for."""
_turns = itertools.count()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Nobody listens there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port of loopback that is free now, another one at each call. Raises StartupError when
    there is none."""
    ports = _ephemeral_start() - _LOWEST
    for turn in itertools.islice(_turns, ports):
        port = _LOWEST + (os.getpid() * _APART + turn) % ports
        if is_free(port):
            return port
    raise StartupError(f"no free port from {_LOWEST} to {_LOWEST + ports - 1}")


def _ephemeral_start() -> int:
    """Where the kernel's choices begin; the usual place when they leave nothing below."""
    try:
        start = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL
    return start if start > 2 * _LOWEST else _USUAL_EPHEMERAL
