"""What a plane address says: where the owner listens, and on which host it lives.

`ucx://127.0.0.1:41234/5f0c…` : the last part names the shared-memory domain (one boot, one IPC,
PID and network namespace, one user), or is '-' where the owner offers TCP only.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from shared.errors import Code, TransferError

NO_DOMAIN: Final = "-"
_MAX_CHARACTERS: Final = 256


@dataclass(frozen=True, slots=True)
class PlaneAddress:
    host: str
    port: int
    domain: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ucx://{host}:{self.port}/{self.domain}"


def parse_address(text: str) -> PlaneAddress:
    """Raises TransferError. Only literal IP addresses: no name is ever looked up."""
    try:
        if len(text) > _MAX_CHARACTERS:
            raise ValueError
        parts = urlsplit(text)
        host, port = str(ipaddress.ip_address(parts.hostname or "")), parts.port
    except ValueError as error:
        raise TransferError("not a plane address", Code.INVALID_PARAMETER) from error
    if parts.scheme != "ucx" or not port or len(parts.path) < 2:
        raise TransferError("not a plane address", Code.INVALID_PARAMETER)
    return PlaneAddress(host, port, parts.path[1:])


def memory_domain() -> str:
    """Equal in two processes that can share memory with each other."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts = [file.read().strip(), str(os.geteuid())]
    # UCX wakes a peer through an abstract socket, which lives in the network namespace.
    parts += [os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "pid", "net")]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
