"""What a plane address says: where the owner listens, on which host it lives, and its link key.

`ucx://127.0.0.1:41234/5f0c…/e1a9…` : the adapter's name and the socket; then the shared-memory
domain (one boot, one IPC, PID and network namespace, one user), or '-' where the owner offers none;
then the key of this process, which lets a peer open a link (each read needs a ticket besides). It
travels between workers only.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from shared.errors import Code, TransferError

NO_DOMAIN: Final = "-"
_MAX_CHARACTERS: Final = 256
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class PlaneAddress:
    host: str
    port: int
    domain: str
    key: str = field(repr=False)
    scheme: str = "ucx"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{self.domain}/{self.key}"


def new_key() -> str:
    return secrets.token_hex(_KEY_BYTES)


def parse_address(text: str, scheme: str = "ucx") -> PlaneAddress:
    """Raises TransferError, also for another adapter than ours. Only literal IP addresses: no
    name is ever looked up."""
    try:
        if len(text) > _MAX_CHARACTERS:
            raise ValueError
        parts = urlsplit(text)
        host, port = str(ipaddress.ip_address(parts.hostname or "")), parts.port
    except ValueError as error:
        raise TransferError("not a plane address", Code.INVALID_PARAMETER) from error
    path = parts.path.split("/")
    if parts.scheme != scheme or not port or len(path) != 3 or not all(path[1:]):
        raise TransferError("not a plane address", Code.INVALID_PARAMETER)
    return PlaneAddress(host, port, path[1], path[2], scheme)


def memory_domain() -> str:
    """Equal in two processes that can share memory with each other."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts = [file.read().strip(), str(os.geteuid())]
    # UCX wakes a peer through an abstract socket, which lives in the network namespace.
    parts += [os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "pid", "net")]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
